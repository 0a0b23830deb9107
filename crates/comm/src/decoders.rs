//! The decoders of received bytes, one by one, for fuzzing; not a stable interface.

use std::error::Error;

use ronde_core::{DType, Generation, GroupRank, ReduceOp};
use ronde_schedule::Algorithm;
use ronde_wire::PREFIX_BYTES;

use crate::config::GroupConfig;
use crate::frame::{Call, CallKind, FrameHeader, FrameKind, HEADER_BYTES};
use crate::hello::{HELLO, JoinHello};
use crate::notice::Notice;

/// A format of bytes received from peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireFormat {
    /// The header of every frame.
    Frame,
    /// The first frame between two members, prefix and body.
    Hello,
    /// A member's notice of a failure.
    Notice,
}

impl WireFormat {
    /// Returns valid encodings, to start with.
    #[must_use]
    pub fn samples(self) -> Vec<Vec<u8>> {
        match self {
            Self::Frame => frames().iter().map(|f| f.encode().to_vec()).collect(),
            Self::Hello => hellos().iter().filter_map(|h| h.encode().ok()).collect(),
            Self::Notice => notices().iter().map(|n| n.encode(1)).collect(),
        }
    }

    /// Decodes bytes as a group does, or returns why they are refused.
    ///
    /// # Errors
    /// Why they are refused.
    ///
    /// # Panics
    /// When an accepted value is not the same after encoding and decoding: a bug.
    pub fn read(self, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Frame => frame(bytes),
            Self::Hello => hello(bytes),
            Self::Notice => notice(bytes),
        }
    }
}

fn frame(bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let bytes: &[u8; HEADER_BYTES] = bytes.try_into().map_err(|_| "invalid length")?;
    let header = FrameHeader::decode(bytes)?;
    assert_eq!(
        header.encode(),
        *bytes,
        "a header encodes to the bytes it was decoded from"
    );
    // As an error would format it.
    let _words = header.call.describe();
    Ok(())
}

fn hello(bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let (prefix, body) = bytes.split_at_checked(PREFIX_BYTES).ok_or("too short")?;
    let prefix = prefix.try_into().map_err(|_| "too short")?;
    let len = HELLO.body_bytes(prefix);
    if body.len() != len? {
        return Err("truncated".into());
    }
    let hello = JoinHello::decode(body)?;
    let mine = JoinHello::new(&GroupConfig::new("dp", "job", GroupRank(0)), 2, 1);
    let _words = mine.check(&hello).map_err(|error| error.to_string());
    let again = hello.encode()?;
    let again = JoinHello::decode(&again[PREFIX_BYTES..]).expect("an encoded hello is valid");
    assert_eq!(
        again, hello,
        "a hello is the same after encoding and decoding"
    );
    Ok(())
}

fn notice(bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let (notice, origin) = Notice::decode(bytes).ok_or("invalid notice")?;
    let again = Notice::decode(&notice.encode(origin as u32));
    if bytes.len() <= 1 << 10 {
        // Longer text may be truncated, also within a character.
        assert_eq!(again.as_ref(), Some(&(notice.clone(), origin)));
    }
    let mine = (origin.is_multiple_of(2)).then_some(call(CallKind::Barrier, None));
    let error = notice.error(origin, 0, Generation(0), mine);
    let _words = (error.to_string(), error.recovery());
    Ok(())
}

fn call(kind: CallKind, algorithm: Option<Algorithm>) -> Call {
    Call {
        kind,
        dtype: DType::Bf16,
        op: ReduceOp::Max,
        algorithm,
        detail: 3,
        len: 1 << 20,
    }
}

fn frames() -> Vec<FrameHeader> {
    let header = |kind, call, bytes| FrameHeader {
        kind,
        generation: Generation(7),
        sequence: 12,
        call,
        bytes,
    };
    let reduce = call(CallKind::AllReduce, Some(Algorithm::Hierarchical));
    vec![
        header(FrameKind::Collective, reduce, 4096),
        header(FrameKind::Message, call(CallKind::Message, None), 0),
        header(FrameKind::Lent, call(CallKind::Message, None), 0),
        header(FrameKind::LentRead, Call::NOTHING, 0),
        header(FrameKind::Notice, Call::NOTHING, 100),
        header(FrameKind::Goodbye, Call::NOTHING, 0),
    ]
}

fn hellos() -> Vec<JoinHello> {
    let mut config = GroupConfig::new("dp", "job", GroupRank(1));
    let bare = JoinHello::new(&config, 2, 1);
    for (name, value) in [("run.seed", "42"), ("cpu", "avx2"), ("model", "")] {
        config.plan.set(name, value);
    }
    vec![bare, JoinHello::new(&config, 4000, 16)]
}

fn notices() -> Vec<Notice> {
    let reduce = call(CallKind::AllReduce, Some(Algorithm::Ring));
    vec![
        Notice::Aborted {
            reason: "enough".to_owned(),
        },
        Notice::PeerLost {
            sequence: 9,
            call: reduce,
            peer: 3,
            cause: "connection reset".to_owned(),
        },
        Notice::Mismatch {
            sequence: 9,
            sender_call: reduce,
            peer: 0,
            peer_call: call(CallKind::Gather, None),
        },
        Notice::OutOfMemory {
            call: reduce,
            bytes: 1 << 40,
        },
    ]
}
