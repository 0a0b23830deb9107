//! How members find out over their streams who shares memory with them, pair by pair.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_core::CollectiveError;

use super::{NearPeer, NearStreams};
use crate::frame::number;
use crate::host::this_host;
use crate::shared::{Mapping, RingReader, RingWriter, SLOT_BYTES};
use crate::transport::{Interest, Transport};
use crate::{JoinCancellation, clock};

/// Bytes before the rings of a file: the secret that tells it from any other one.
const SECRET_BYTES: usize = 16;
const HEAD_BYTES: usize = 128;
/// Most rings of a member, whatever it says.
const RINGS_MAX: usize = 4096;
/// Between two looks at whether to give up.
const LOOK: Duration = Duration::from_millis(10);
/// In place of a file descriptor: there is none.
const NO_FILE: u32 = u32::MAX;

/// Whom a member may share memory with.
const WHO_BYTES: usize = 1 + 8 + 4;
/// Where its rings are: process, file descriptor, the peer's ring, count of rings, secret.
const WHERE_BYTES: usize = 4 * 4 + SECRET_BYTES;

/// Who is to meet, and until when.
struct Meeting<'a> {
    size: usize,
    transport: Box<dyn Transport>,
    end: Instant,
    give_up: Option<&'a JoinCancellation>,
}

/// Messages by group rank.
type Messages = BTreeMap<usize, Vec<u8>>;

/// This member's rings, one for each neighbour, in the order of their ranks.
struct Rings {
    file: OwnedFd,
    mapping: Arc<Mapping>,
    secret: [u8; SECRET_BYTES],
}

impl Rings {
    fn create(count: usize) -> io::Result<Self> {
        let mut secret = [0; SECRET_BYTES];
        rustix::rand::getrandom(&mut secret[..], rustix::rand::GetRandomFlags::empty())?;
        let (file, mapping) = Mapping::create(HEAD_BYTES + count * SLOT_BYTES)?;
        mapping.span(0..SECRET_BYTES).write(&secret);
        let mapping = Arc::new(mapping);
        Ok(Self {
            file,
            mapping,
            secret,
        })
    }
}

fn base(ring: usize) -> usize {
    HEAD_BYTES + ring * SLOT_BYTES
}

/// Puts shared memory between this member and those of its host where both want it: `wants`, by peer. All
/// members call it before anything else is sent. Three short messages to each neighbour, one to any other peer.
///
/// # Errors
/// [`CollectiveError::Connect`] when a peer does not answer in time, or is lost.
pub(crate) fn introduce(
    transport: Box<dyn Transport>,
    me: usize,
    (wants, end): (&[bool], Instant),
    give_up: Option<&JoinCancellation>,
) -> Result<Box<dyn Transport>, CollectiveError> {
    let size = wants.len();
    let mut meeting = Meeting {
        size,
        transport,
        end,
        give_up,
    };
    let user = rustix::process::getuid().as_raw();
    let host = this_host();
    let who = |peer: usize| {
        let mut who = vec![u8::from(wants[peer] && host != 0)];
        who.extend(host.to_le_bytes());
        who.extend(user.to_le_bytes());
        who
    };
    let all = (0..size).filter(|&peer| peer != me);
    let said = meeting.exchange(all.map(|peer| (peer, who(peer))).collect(), WHO_BYTES)?;
    let candidates: Vec<usize> = said
        .into_iter()
        .filter(|(peer, theirs)| theirs[0] == 1 && *theirs == who(*peer))
        .map(|(peer, _)| peer)
        .collect();
    if candidates.is_empty() {
        return Ok(meeting.transport);
    }
    // Without memory of its own a member tells so, and keeps to the streams.
    let rings = Rings::create(candidates.len()).ok();
    let places = candidates.iter().enumerate();
    let places = places.map(|(ring, &peer)| (peer, place(rings.as_ref(), ring, candidates.len())));
    let theirs = meeting.exchange(places.collect(), WHERE_BYTES)?;
    let mut neighbours: Vec<Option<NearPeer>> = (0..size).map(|_| None).collect();
    for (ring, &peer) in candidates.iter().enumerate() {
        let out = theirs.get(&peer).and_then(|place| open(place).ok());
        if let (Some(rings), Some(out)) = (&rings, out) {
            let into = RingReader::new(&rings.mapping, base(ring));
            neighbours[peer] = Some(NearPeer::new(out, into));
        }
    }
    let verdicts = candidates.iter();
    let verdicts = verdicts.map(|&peer| (peer, vec![u8::from(neighbours[peer].is_some())]));
    for (peer, verdict) in meeting.exchange(verdicts.collect(), 1)? {
        if verdict != [1] {
            neighbours[peer] = None;
        }
    }
    Ok(Box::new(NearStreams::new(meeting.transport, neighbours)))
}

fn place(rings: Option<&Rings>, ring: usize, count: usize) -> Vec<u8> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let fd = rings.map_or(NO_FILE, |rings| rings.file.as_raw_fd().cast_unsigned());
    let mut place = Vec::with_capacity(WHERE_BYTES);
    for word in [pid.cast_unsigned(), fd, ring as u32, count as u32] {
        place.extend(word.to_le_bytes());
    }
    place.extend(rings.map_or([0; SECRET_BYTES], |rings| rings.secret));
    place
}

/// The ring of a peer that this member writes to.
fn open(place: &[u8]) -> io::Result<RingWriter> {
    let word = |at: usize| number(&place[4 * at..4 * at + 4]);
    let (pid, fd) = (word(0) as u32, word(1) as u32);
    let (ring, count) = (word(2) as usize, word(3) as usize);
    if fd == NO_FILE || ring >= count || count > RINGS_MAX {
        return Err(ErrorKind::NotFound.into());
    }
    let mapping = Mapping::open(pid, fd, HEAD_BYTES + count * SLOT_BYTES)?;
    let mut secret = [0; SECRET_BYTES];
    mapping.span(0..SECRET_BYTES).read(&mut secret);
    if secret != place[16..] {
        return Err(io::Error::other("found memory that is not the member's"));
    }
    Ok(RingWriter::new(&Arc::new(mapping), base(ring)))
}

impl Meeting<'_> {
    /// Sends each peer its message and gets one of `len` bytes from each.
    fn exchange(&mut self, messages: Messages, len: usize) -> Result<Messages, CollectiveError> {
        let mut unsent = messages;
        let mut got: Messages = unsent.keys().map(|&peer| (peer, Vec::new())).collect();
        loop {
            let mut interest = vec![Interest::default(); self.size];
            for (&peer, into) in &mut got {
                let mut wanted = Interest::default();
                if let Some(rest) = unsent.get_mut(&peer).filter(|rest| !rest.is_empty()) {
                    let gone = self.transport.write(peer, rest, &[]);
                    rest.drain(..or_nothing(gone).map_err(|error| lost(peer, &error))?);
                    wanted.write = !rest.is_empty();
                }
                if into.len() < len {
                    let mut some = [0; 64];
                    let room = some.len().min(len - into.len());
                    let count = match self.transport.read(peer, &mut some[..room]) {
                        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                        other => or_nothing(other),
                    };
                    let count = count.map_err(|error| lost(peer, &error))?;
                    into.extend(&some[..count]);
                    wanted.read = into.len() < len;
                }
                interest[peer] = wanted;
            }
            let Some(peer) = interest
                .iter()
                .position(|wanted| wanted.read || wanted.write)
            else {
                return Ok(got);
            };
            let left = clock::left(self.end);
            let is_given_up = self.give_up.is_some_and(JoinCancellation::is_requested);
            if is_given_up {
                return Err(lost(peer, &"it was given up, for there is a newer one"));
            }
            if left.is_zero() {
                return Err(lost(peer, &io::Error::from(ErrorKind::TimedOut)));
            }
            let waited = self.transport.wait(&mut interest, Some(left.min(LOOK)));
            waited.map_err(|error| lost(peer, &error))?;
        }
    }
}

fn or_nothing(outcome: io::Result<usize>) -> io::Result<usize> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

fn lost(peer: usize, error: &dyn ToString) -> CollectiveError {
    CollectiveError::Connect {
        what: format!("meeting group rank {peer}"),
        cause: error.to_string(),
    }
}
