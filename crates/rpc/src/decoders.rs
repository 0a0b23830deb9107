//! The decoders of received bytes, one by one, for fuzzing; not a stable interface.

use std::error::Error;
use std::io::ErrorKind;
use std::sync::Arc;

use ronde_peer_memory::LendingOffer;

use crate::frame::{CallHead, FrameBody, RpcFrameKind};
use crate::frame_reader::FrameReader;
use crate::hello::{self, CalleeHello, CallerHello, HELLO};
use crate::values::CallValues;

/// The limit of values in a fuzzed message, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A format of bytes received from other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcWireFormat {
    /// A stream of frames, and their contents.
    Frames,
    /// The first messages in both directions.
    Hello,
}

impl RpcWireFormat {
    /// Returns valid encodings, to start with.
    #[must_use]
    pub fn samples(self) -> Vec<Vec<u8>> {
        match self {
            Self::Frames => vec![frames()],
            Self::Hello => vec![
                hello::encode(&CallerHello {
                    job: "job".to_owned(),
                    from: "one".to_owned(),
                    process: 7,
                    to: "two".to_owned(),
                    token: Some("a secret".to_owned()),
                    lends: Some(LendingOffer {
                        process: 1,
                        mark_address: 2,
                        mark: 3,
                    }),
                }),
                hello::encode(&CalleeHello {
                    process: 7,
                    is_resumed: true,
                    token: None,
                    lends: None,
                    refused: Some("a reason".to_owned()),
                }),
            ],
        }
    }

    /// Decodes bytes as a node does, or returns why they are refused.
    ///
    /// # Errors
    /// Why they are refused.
    pub fn read(self, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Frames => read_frames(bytes),
            Self::Hello => match HELLO.missing(bytes)? {
                0 => {
                    let caller = hello::decode::<CallerHello>(bytes).map(drop);
                    caller.or_else(|_| hello::decode::<CalleeHello>(bytes).map(drop))?;
                    Ok(())
                }
                missing => Err(format!("{missing} bytes are missing").into()),
            },
        }
    }
}

fn frames() -> Vec<u8> {
    let head = CallHead {
        version: 1,
        limit_ms: 1_000,
        function: "example",
        arguments: b"[1,2]",
    };
    let call = |kind, head: Vec<u8>, values: Vec<f32>| FrameBody {
        kind,
        call: 3,
        head,
        values: CallValues::from(values),
    };
    let frames = [
        call(RpcFrameKind::Call, head.encode(), vec![1.5; 5]),
        call(RpcFrameKind::Answer, b"null".to_vec(), vec![]),
        FrameBody::failure(3, crate::frame::FailureCode::Overloaded, "text"),
        FrameBody::numbers(RpcFrameKind::Acknowledge, &[1, 2]),
        FrameBody::numbers(RpcFrameKind::Waiting, &[3]),
        FrameBody::cancel(4),
        FrameBody::returned(5),
    ];
    let mut bytes = Vec::new();
    for (sequence, frame) in frames.iter().enumerate() {
        bytes.extend(frame.header(sequence as u32).encode());
        bytes.extend(&frame.head);
        bytes.extend(frame.values.as_bytes());
    }
    bytes
}

fn read_frames(mut bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut reader = FrameReader::new(MESSAGE_BYTES_MAX, Arc::default());
    loop {
        let frame = reader.next(&mut |into| {
            let count = into.len().min(bytes.len());
            into[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            Ok(count)
        });
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(()),
            Err(error)
                if error.kind() == ErrorKind::UnexpectedEof && reader.is_between_frames() =>
            {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let _calls = frame.listed().count();
        let _failure = frame.failure_parts();
        if frame.kind == RpcFrameKind::Call {
            CallHead::decode(&frame.head)?;
        }
    }
}
