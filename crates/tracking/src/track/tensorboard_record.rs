//! Records of TensorBoard's event files: protocol buffers of `tensorboard/compat/proto`, framed as TFRecords.

use crc_fast::CrcAlgorithm;
use ronde_core::protobuf::ProtoMessage;

/// Frames the bytes of an event: length, checksum of the length, bytes, checksum of the bytes.
pub(super) fn record(event: ProtoMessage) -> Vec<u8> {
    let bytes = event.into_bytes();
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend_from_slice(&length);
    record.extend_from_slice(&masked(&length).to_le_bytes());
    record.extend_from_slice(&bytes);
    record.extend_from_slice(&masked(&bytes).to_le_bytes());
    record
}

/// Returns the masked CRC-32C of TFRecords.
fn masked(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Begins an event at a time and a step.
pub(super) fn event(t: f64, step: u64) -> ProtoMessage {
    ProtoMessage::default().double(1, t).number(2, step)
}

/// Returns an event that names the version of the format; the first one of a file.
pub(super) fn file_version(t: f64) -> ProtoMessage {
    ProtoMessage::default()
        .double(1, t)
        .bytes(3, b"brain.Event:2")
}

/// Returns an event after which earlier events from `step` on are discarded: the run has been restarted there.
pub(super) fn session_start(t: f64, step: u64) -> ProtoMessage {
    event(t, step).message(7, &ProtoMessage::default().number(1, 1))
}

/// Returns an event with one value of a summary.
pub(super) fn summary(t: f64, step: u64, value: ProtoMessage) -> ProtoMessage {
    event(t, step).message(5, &ProtoMessage::default().message(1, &value))
}

/// Returns a scalar with its tag.
pub(super) fn scalar(tag: &str, value: f64) -> ProtoMessage {
    #[expect(clippy::cast_possible_truncation, reason = "the format has 32 bits")]
    let value = value as f32;
    ProtoMessage::default()
        .bytes(1, tag.as_bytes())
        .float(2, value)
}

/// Returns a text (Markdown) with its tag.
pub(super) fn text(tag: &str, text: &str) -> ProtoMessage {
    const STRING: u64 = 7;
    let tensor = ProtoMessage::default()
        .number(1, STRING)
        .message(
            2,
            &ProtoMessage::default().message(2, &ProtoMessage::default().number(1, 1)),
        )
        .bytes(8, text.as_bytes());
    ProtoMessage::default()
        .bytes(1, tag.as_bytes())
        .message(8, &tensor)
        .message(9, &plugin("text", &[]))
}

/// Returns a value of the hparams plugin: `content` is its message, as field `field` of `HParamsPluginData`.
pub(super) fn hparams(tag: &str, field: u64, content: ProtoMessage) -> ProtoMessage {
    let data = ProtoMessage::default()
        .message(field, &content)
        .into_bytes();
    // The plugin reads its data from the metadata; the tensor only makes the value one.
    let tensor = ProtoMessage::default()
        .number(1, 1)
        .message(2, &ProtoMessage::default())
        .float(5, 0.0);
    ProtoMessage::default()
        .bytes(1, tag.as_bytes())
        .message(8, &tensor)
        .message(9, &plugin("hparams", &data))
}

/// Returns the metadata of a value that a plugin shows.
fn plugin(name: &str, content: &[u8]) -> ProtoMessage {
    let data = ProtoMessage::default()
        .bytes(1, name.as_bytes())
        .bytes(2, content);
    ProtoMessage::default().message(1, &data)
}
