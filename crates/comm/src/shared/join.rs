//! Joining: members find out over their streams whether they can share memory, and map it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ronde_core::byte_reader::number;
use ronde_core::{Buffer, CollectiveError, Collectives, CollectivesExt, DType, Generation};
use ronde_peer_memory::{LendingMark, LendingOffer};

use super::control::{CONTROL_BYTES, ControlMemory};
use super::executor::{LocalPeer, SharedExecutor};
use super::mapping::Mapping;
use super::pool::MemoryPool;
use super::queue::SharedQueue;
use super::tree::ReductionTree;
use super::wait::SpinBudget;
use crate::config::TransportChoice;
use crate::host::this_host;
use crate::stream_executor::Mailbox;

/// Size of a description before the reason, in bytes.
const DESCRIPTION_BYTES: usize = 1 + 8 + 4 + 4 + 4 + 16 + 8 + 8;
/// Maximum size of a reason, in bytes.
const REASON_BYTES_MAX: usize = 300;

/// A member's description of its shared memory, sent to the other members.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemoryDescription {
    /// Whether this member requires shared memory.
    required: bool,
    /// The host's identity; 0 if the system does not provide one.
    host: u64,
    user: u32,
    pid: u32,
    fd: u32,
    secret: [u8; 16],
    /// Address and contents of the mark of messages that it lends; 0 if it lends none.
    lending: [u64; 2],
    /// Why this member offers no shared memory; empty if it does.
    refusal: String,
}

impl MemoryDescription {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.required)];
        out.extend(self.host.to_le_bytes());
        for word in [self.user, self.pid, self.fd] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.secret);
        for word in self.lending {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.refusal.bytes().take(REASON_BYTES_MAX));
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (description, refusal) = bytes.split_at_checked(DESCRIPTION_BYTES)?;
        let word = |at: usize| number(&description[at..at + 4]) as u32;
        let mut secret = [0; 16];
        secret.copy_from_slice(&description[21..37]);
        Some(Self {
            required: description[0] != 0,
            host: number(&description[1..9]),
            user: word(9),
            pid: word(13),
            fd: word(17),
            secret,
            lending: [37, 45].map(|at| number(&description[at..at + 8])),
            refusal: String::from_utf8_lossy(refusal).into_owned(),
        })
    }

    /// Returns where this member lends messages to `reader`, if both are on one host.
    fn lends_to(&self, reader: &Self) -> Option<LendingOffer> {
        let [mark_address, mark] = self.lending;
        let is_local = self.host != 0 && self.host == reader.host;
        (is_local && mark != 0).then_some(LendingOffer {
            process: self.pid,
            mark_address,
            mark,
        })
    }

    /// Returns why this rank and that of `other` cannot share memory.
    fn obstacle(&self, other: &Self) -> Option<String> {
        if !other.refusal.is_empty() {
            return Some(other.refusal.clone());
        }
        if self.host != other.host {
            return Some("it is on another host".to_owned());
        }
        let (mine, theirs) = (self.user, other.user);
        (mine != theirs).then(|| format!("it runs as user {theirs}, not {mine}"))
    }
}

/// This member's control memory, before other members have mapped it.
struct ControlOffer {
    file: OwnedFd,
    control: ControlMemory,
}

fn offer(secret: &mut [u8; 16], host: u64) -> io::Result<ControlOffer> {
    if host == 0 {
        return Err(io::Error::other(
            "the system provides no identity of this host",
        ));
    }
    rustix::rand::getrandom(&mut secret[..], rustix::rand::GetRandomFlags::empty())?;
    let (file, mapping) = Mapping::create(CONTROL_BYTES)?;
    mapping.fill(&file, 0..CONTROL_BYTES)?;
    let control = ControlMemory::new(mapping);
    control.mark(secret);
    Ok(ControlOffer { file, control })
}

/// Returns this member's description, and its control memory if it offers any.
fn describe_memory(
    choice: TransportChoice,
    lending: Option<&LendingMark>,
) -> (MemoryDescription, Option<ControlOffer>) {
    let (mut secret, host) = ([0; 16], this_host());
    let (offered, refusal) = match choice {
        TransportChoice::Tcp => (None, "it is configured to use TCP".to_owned()),
        _ => match offer(&mut secret, host) {
            Ok(offered) => (Some(offered), String::new()),
            Err(error) => (None, format!("it cannot create shared memory: {error}")),
        },
    };
    let description = MemoryDescription {
        required: choice == TransportChoice::SharedMemory,
        host,
        user: rustix::process::getuid().as_raw(),
        pid: rustix::process::getpid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned(),
        fd: offered
            .as_ref()
            .map_or(0, |offer| offer.file.as_raw_fd().cast_unsigned()),
        secret,
        lending: lending.map_or([0; 2], |mark| {
            let offer = mark.offer();
            [offer.mark_address, offer.mark]
        }),
        refusal,
    };
    (description, offered)
}

/// The parameters of the group that joining needs.
pub(crate) struct JoinParameters<'a> {
    pub(crate) choice: TransportChoice,
    pub(crate) name: &'a str,
    pub(crate) limit: Duration,
    pub(crate) generation: Generation,
    pub(crate) mailbox: &'a Arc<Mailbox>,
    /// The mark of messages that this member lends, if any.
    pub(crate) lending: Option<&'a LendingMark>,
}

/// The memory of the members of a group, as each knows it.
pub(crate) struct MemoryJoin {
    /// Shared memory, if all members have it.
    pub(crate) queue: Option<Arc<SharedQueue>>,
    /// Where each member of this host lends messages, by rank; `None` for this one.
    pub(crate) offers: Vec<Option<LendingOffer>>,
}

/// Exchanges descriptions of the members' memory, and shares it as [`share`] does.
///
/// # Errors
/// [`CollectiveError::Connect`] on all ranks if one of them requires shared memory and it is not possible.
pub(crate) fn join(
    group: &dyn Collectives,
    parameters: &JoinParameters<'_>,
) -> Result<MemoryJoin, CollectiveError> {
    let (mine, offered) = describe_memory(parameters.choice, parameters.lending);
    let descriptions = gather_bytes(group, &mine.encode())?;
    let descriptions: Option<Vec<MemoryDescription>> = descriptions
        .iter()
        .map(|bytes| MemoryDescription::decode(bytes))
        .collect();
    let descriptions =
        descriptions.ok_or_else(|| failed("invalid description from a member".to_owned()))?;
    let me = group.rank().index();
    let offers = descriptions.iter().enumerate();
    let offers = offers.map(|(rank, theirs)| (rank != me).then(|| theirs.lends_to(&mine))?);
    Ok(MemoryJoin {
        offers: offers.collect(),
        queue: share(group, parameters, &descriptions, offered)?,
    })
}

/// Shares memory with all other members of a group whose streams are running; `None` if that is not
/// requested or not possible. All members get the same result. A second short round over the streams.
///
/// # Errors
/// [`CollectiveError::Connect`] on all ranks if one of them requires shared memory and it is not possible.
fn share(
    group: &dyn Collectives,
    parameters: &JoinParameters<'_>,
    descriptions: &[MemoryDescription],
    offered: Option<ControlOffer>,
) -> Result<Option<Arc<SharedQueue>>, CollectiveError> {
    let required = descriptions.iter().any(|description| description.required);
    let refused = |obstacle: String| {
        if required {
            Err(failed(obstacle))
        } else {
            Ok(None)
        }
    };
    if let Some(obstacle) = obstacle(descriptions) {
        return refused(obstacle);
    }
    let Some(offered) = offered else {
        return refused("this rank offers none".to_owned());
    };
    let queue = map(group, parameters, descriptions, offered);
    let word = queue
        .as_ref()
        .err()
        .map_or(String::new(), ToString::to_string);
    let words = gather_bytes(group, &word.as_bytes()[..word.len().min(REASON_BYTES_MAX)])?;
    match words.iter().position(|word| !word.is_empty()) {
        Some(rank) => {
            if let Ok(queue) = queue {
                queue.leave();
            }
            refused(format!(
                "group rank {rank}: {}",
                String::from_utf8_lossy(&words[rank])
            ))
        }
        None => queue.map(Some).map_err(|error| failed(error.to_string())),
    }
}

fn failed(cause: String) -> CollectiveError {
    CollectiveError::Connect {
        what: "cannot share memory with the other members".to_owned(),
        cause,
    }
}

/// Returns why two of the members cannot share memory; the same on all ranks.
fn obstacle(descriptions: &[MemoryDescription]) -> Option<String> {
    let all = descriptions.iter().enumerate();
    all.filter_map(|(rank, description)| Some((rank, descriptions[0].obstacle(description)?)))
        .map(|(rank, why)| format!("group rank {rank}: {why}"))
        .next()
}

/// Gathers the bytes of all ranks, by rank.
fn gather_bytes(group: &dyn Collectives, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
    let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
    framed.extend(bytes);
    let all = group.run(ronde_core::Operation::AllGather, Buffer::copy_of(&framed))?;
    let (mut rest, mut each) = (all.bytes(), Vec::new());
    while let Some((len, after)) = rest.split_at_checked(4) {
        let Some((bytes, after)) = after.split_at_checked(number(len) as usize) else {
            break;
        };
        each.push(bytes.to_vec());
        rest = after;
    }
    if each.len() == group.size() {
        return Ok(each);
    }
    Err(failed("members use different protocols".to_owned()))
}

/// Maps the control memory of the other members, and starts the queue.
fn map(
    group: &dyn Collectives,
    parameters: &JoinParameters<'_>,
    descriptions: &[MemoryDescription],
    offered: ControlOffer,
) -> io::Result<Arc<SharedQueue>> {
    let me = group.rank().index();
    let ControlOffer { file, control } = offered;
    let control = Arc::new(control);
    let mut local_peers = Vec::with_capacity(descriptions.len());
    for (rank, description) in descriptions.iter().enumerate() {
        let control = if rank == me {
            Arc::clone(&control)
        } else {
            let theirs = ControlMemory::new(Mapping::open(
                description.pid,
                description.fd,
                CONTROL_BYTES,
            )?);
            if !theirs.is_marked(&description.secret) {
                return Err(io::Error::other(
                    "the mapped file is not that member's memory",
                ));
            }
            Arc::new(theirs)
        };
        local_peers.push(LocalPeer {
            pid: description.pid,
            control,
            segments: Vec::new(),
        });
    }
    let executor = SharedExecutor {
        me,
        local_peers,
        pool: MemoryPool::new(&format!("group {}", parameters.name), control),
        mailbox: Arc::clone(parameters.mailbox),
        limit: parameters.limit,
        generation: parameters.generation,
        begun: 0,
        base: 0,
        chain: Arc::new(ReductionTree::chain(descriptions.len())),
        exact: None,
        scratch: Buffer::host(DType::U8, 0),
        has_failed: false,
        _file: file,
    };
    SharedQueue::open(
        executor,
        SpinBudget::new(descriptions.len()),
        &format!("{} {me}", parameters.name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(rank: u32) -> MemoryDescription {
        MemoryDescription {
            required: rank == 1,
            host: 7,
            user: 1000,
            pid: 100 + rank,
            fd: 5,
            secret: [rank as u8; 16],
            lending: [u64::from(rank) << 40, 9],
            refusal: String::new(),
        }
    }

    #[test]
    fn a_description_is_the_same_after_decoding_and_names_the_obstacle() {
        let descriptions = [description(0), description(1), description(2)];
        for description in &descriptions {
            assert_eq!(
                MemoryDescription::decode(&description.encode()).as_ref(),
                Some(description)
            );
        }
        assert_eq!(MemoryDescription::decode(&[0; DESCRIPTION_BYTES - 1]), None);
        assert_eq!(obstacle(&descriptions), None);
        let offer = descriptions[1].lends_to(&descriptions[0]);
        assert!(offer.is_some_and(|offer| (offer.process, offer.mark_address) == (101, 1 << 40)));
        let mut mismatched_peer = descriptions.clone();
        mismatched_peer[2].host = 8;
        assert_eq!(mismatched_peer[2].lends_to(&mismatched_peer[0]), None);
        assert!(
            obstacle(&mismatched_peer)
                .is_some_and(|why| why.contains("rank 2") && why.contains("host"))
        );
        mismatched_peer[1].refusal = "no memory".to_owned();
        assert!(obstacle(&mismatched_peer).is_some_and(|why| why.contains("rank 1: no memory")));
        let mut mismatched_peer = descriptions;
        mismatched_peer[2].user = 3;
        assert!(obstacle(&mismatched_peer).is_some_and(|why| why.contains("user 3")));
    }
}
