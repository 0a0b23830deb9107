//! The meeting of fixed members at the address of rank 0: one line of JSON each way.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use ronde_core::Rank;
use ronde_identity::{Identity, Member};
use ronde_wire::LineStream;
use serde::{Deserialize, Serialize};

use super::FixedRank;
use super::stream::{check_peer, from_member, problem};
use crate::long_wait::LongWait;
use crate::wire::{HELLO_BYTES_MAX, SUPERVISOR_BYTES_MAX};

/// Version of these messages; mixed versions are refused.
const PROTOCOL: u32 = 2;
/// Time within which a connection must send its hello.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Interval between two looks for new connections.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The first message of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberHello {
    protocol: u32,
    job: String,
    /// Whether the member has a secret, which it has proved to know.
    has_token: bool,
    rank: u32,
    world_size: u32,
    /// The address at which its data plane listens.
    data_address: SocketAddr,
}

impl MemberHello {
    pub(super) fn of(mine: &FixedRank, data_address: SocketAddr) -> Self {
        Self {
            protocol: PROTOCOL,
            job: mine.job.clone(),
            has_token: !mine.token.is_empty(),
            rank: mine.rank.0,
            world_size: mine.world_size.get(),
            data_address,
        }
    }
}

/// The answer of rank 0.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
enum MeetingReply {
    /// All members have met.
    Complete {
        /// The addresses of all data planes, by rank.
        peers: Vec<SocketAddr>,
        task: String,
    },
    /// The hello does not fit the job, or not all members joined in time.
    Refused { reason: String },
}

/// One member's view of the meeting.
pub(super) struct Meeting<'a> {
    pub(super) mine: &'a FixedRank,
    pub(super) deadline: Instant,
    /// The certificate of this member, if it has a secret.
    pub(super) identity: Option<&'a Identity>,
}

impl Meeting<'_> {
    /// Waits as rank 0 for all other members and sends them the addresses of all and the task.
    pub(super) fn host(
        &self,
        listener: &TcpListener,
        data_address: SocketAddr,
        task: &str,
        notify: &mut dyn FnMut(String),
    ) -> Result<Vec<SocketAddr>, String> {
        let text = |error: std::io::Error| error.to_string();
        listener.set_nonblocking(true).map_err(text)?;
        let mut members = BTreeMap::from([(Rank(0), (data_address, None))]);
        let mut wait = LongWait::begin("the other ranks".to_owned(), self.deadline, notify);
        while members.len() < self.mine.world_size.len() {
            if ronde_clock::now() >= self.deadline {
                return Err(self.refuse_all(members));
            }
            let Ok((stream, _)) = listener.accept() else {
                wait.continues(&self.missing(&members));
                ronde_clock::pause(LOOK_EVERY);
                continue;
            };
            stream.set_nonblocking(false).map_err(text)?;
            let limit = self.deadline.min(ronde_clock::now() + HELLO_MAX);
            let Ok(mut stream) = from_member(stream, self.identity, limit) else {
                continue;
            };
            let Ok(hello) = stream.next::<MemberHello>(HELLO_BYTES_MAX, limit, &mut || ()) else {
                continue;
            };
            let admitted = self.admit(&hello, |rank| members.contains_key(&rank));
            let admitted = admitted.and_then(|rank| {
                let checked = self.identity.map_or(Ok(()), |identity| {
                    check_peer(&stream, identity, &Member::Rank(rank))
                });
                checked.map(|()| rank)
            });
            match admitted {
                Ok(rank) => {
                    members.insert(rank, (hello.data_address, Some(stream)));
                }
                Err(reason) => drop(stream.send(&MeetingReply::Refused { reason }, limit)),
            }
        }
        let peers: Vec<SocketAddr> = members.values().map(|(address, _)| *address).collect();
        let reply = MeetingReply::Complete {
            peers: peers.clone(),
            task: task.to_owned(),
        };
        let limit = ronde_clock::now() + HELLO_MAX;
        for stream in members
            .values_mut()
            .filter_map(|(_, stream)| stream.as_mut())
        {
            let sent = stream.send(&reply, limit);
            sent.map_err(|error| problem(&error))?;
        }
        Ok(peers)
    }

    /// Validates a hello. The secret is checked before, so that a client without it learns nothing else.
    fn admit(&self, hello: &MemberHello, is_taken: impl Fn(Rank) -> bool) -> Result<Rank, String> {
        let mine = self.mine;
        if hello.has_token != self.identity.is_some() {
            return Err("wrong token: only some of the processes have one".to_owned());
        }
        if hello.protocol != PROTOCOL {
            let theirs = hello.protocol;
            return Err(format!(
                "unsupported protocol {theirs}: expected {PROTOCOL}"
            ));
        }
        if hello.job != mine.job {
            return Err(format!("rank 0 belongs to job `{}`", mine.job));
        }
        if hello.world_size != mine.world_size.get() {
            return Err(format!(
                "rank 0 expects {} workers, not {}",
                mine.world_size, hello.world_size
            ));
        }
        let rank = Rank(hello.rank);
        if hello.rank >= hello.world_size || is_taken(rank) {
            return Err(format!("rank {rank} is invalid or taken"));
        }
        Ok(rank)
    }

    /// Returns the ranks that have not arrived, as words.
    fn missing<T>(&self, members: &BTreeMap<Rank, T>) -> String {
        let ranks = self.mine.world_size.ranks();
        let missing: Vec<String> = ranks
            .filter(|rank| !members.contains_key(rank))
            .map(|rank| rank.to_string())
            .collect();
        format!("rank {}", missing.join(", "))
    }

    /// Notifies the members that joined in vain, and returns the reason.
    fn refuse_all(&self, members: BTreeMap<Rank, (SocketAddr, Option<LineStream>)>) -> String {
        let reason = format!("not ready in time: {}", self.missing(&members));
        let limit = ronde_clock::now() + HELLO_MAX;
        for mut stream in members.into_values().filter_map(|(_, stream)| stream) {
            let reason = reason.clone();
            // A member that has left does not need it.
            let _ = stream.send(&MeetingReply::Refused { reason }, limit);
        }
        reason
    }

    /// Says hello to rank 0 and waits for the addresses of all members and the task.
    pub(super) fn attend(
        &self,
        stream: &mut LineStream,
        hello: &MemberHello,
        notify: &mut dyn FnMut(String),
    ) -> Result<(Vec<SocketAddr>, String), String> {
        // Rank 0 reports the missing ranks when the time is up for it, which may be later.
        let limit = self.deadline + HELLO_MAX;
        let sent = stream.send(hello, limit);
        sent.map_err(|error| problem(&error))?;
        let mut wait = LongWait::begin("the other ranks".to_owned(), self.deadline, notify);
        let mut waiting = || wait.continues("rank 0 has not met all of them");
        match stream.next(SUPERVISOR_BYTES_MAX, limit, &mut waiting) {
            Ok(MeetingReply::Complete { peers, task })
                if peers.len() == self.mine.world_size.len() =>
            {
                Ok((peers, task))
            }
            Ok(MeetingReply::Complete { peers, .. }) => Err(format!(
                "rank 0 sent {} addresses for {} workers",
                peers.len(),
                self.mine.world_size
            )),
            Ok(MeetingReply::Refused { reason }) => Err(format!("rank 0 refused: {reason}")),
            Err(error) => Err(format!("no answer from rank 0: {}", problem(&error))),
        }
    }
}
