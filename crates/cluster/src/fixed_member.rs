//! [`FixedMember`]: a worker whose rank another launcher has assigned, such as mpirun, srun or torchrun, or a user by
//! hand. The workers know the address of rank 0 and meet there once.
//!
//! ```text
//! rank r: hello { rank, world size, data address } --> rank 0
//! rank r: <-- assignment { peers, task }, after the hello of all
//! ```
//!
//! There is no supervisor: the members are never replaced, and a lost one is noticed by its peers. Members with a token
//! derive the authority of the job from it, so that they meet over TLS 1.3 with certificates on both sides, and the token is
//! never sent.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ronde_core::{Collectives, Generation, Rank, WorldSize};
use ronde_identity::{Authority, Identity, Member, Validity};
use ronde_protocol::{
    Assignment, Departure, GenerationPurpose, JobMember, MembershipError, MembershipPolicy,
    Milestone,
};

use crate::error::ClusterError;
use crate::long_wait::WaitSettings;
use crate::peer_address::PeerAddress;

mod meeting;
mod rank_0;
mod stream;

use meeting::{Meeting, MemberHello};
use rank_0::Rank0;
use stream::to_rank_0;

/// The job in the certificates of members that have a secret in common. Their own name is compared when they meet.
const STARTED: &str = "started";
/// The validity of the certificate of a member.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// The shortest secret for connections between hosts, in characters.
const TOKEN_LENGTH_MIN: usize = 16;

/// The rank of a worker in a job of another launcher, and where its workers meet.
#[derive(Clone, PartialEq, Eq)]
pub struct FixedRank {
    /// The name of the job; workers of another job are refused.
    pub job: String,
    /// The rank of this worker.
    pub rank: Rank,
    /// The number of workers.
    pub world_size: WorldSize,
    /// The address at which rank 0 listens, `host:port`. The port must be free on the host of rank 0.
    pub rendezvous: String,
    /// The secret that all workers of the job know; empty if there is none.
    pub token: String,
}

impl std::fmt::Debug for FixedRank {
    /// Formats everything except the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "rank {} of {} of job {}, rendezvous at {}",
            self.rank, self.world_size, self.job, self.rendezvous
        )
    }
}

impl FixedRank {
    /// Returns the certificate of this worker, by an authority that all workers with the same secret derive; `None` without
    /// a secret.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn identity(&self) -> Result<Option<Identity>, ClusterError> {
        if self.token.is_empty() {
            return Ok(None);
        }
        let failed = |error: ronde_identity::IdentityError| ClusterError::Rendezvous {
            address: self.rendezvous.clone(),
            problem: error.to_string(),
        };
        let authority = Authority::from_secret(STARTED, &self.token).map_err(failed)?;
        let validity = Validity::from_now(SystemTime::now(), YEAR);
        let issued = authority.issue(&Member::Rank(self.rank), validity);
        issued.map(Some).map_err(failed)
    }
}

/// A member of a job whose ranks are fixed from the start.
#[derive(Debug)]
pub struct FixedMember {
    assignment: Assignment,
    identity: Option<Identity>,
}

impl FixedMember {
    /// Meets the other workers at the address of rank 0, whose name is resolved again at each attempt. `bind` returns a
    /// listener for the data plane on an address of this host, and its address; it is called once. `task` is passed to all
    /// workers by rank 0 and ignored on others. With a secret, the connections use TLS with certificates on both sides.
    /// Cost: one connection and one message each way per worker.
    ///
    /// # Errors
    /// Returns [`ClusterError::Address`] for an address without a port, and [`ClusterError::Rendezvous`] if the workers did
    /// not meet in time or do not fit each other.
    pub fn meet(
        mine: &FixedRank,
        task: &str,
        bind: impl FnOnce(IpAddr) -> std::io::Result<SocketAddr>,
        wait: WaitSettings<'_>,
    ) -> Result<Arc<Self>, ClusterError> {
        let deadline = ronde_clock::now() + wait.timeout;
        let failed = |problem: String| ClusterError::Rendezvous {
            address: mine.rendezvous.clone(),
            problem,
        };
        let identity = mine.identity()?;
        let address: PeerAddress = mine.rendezvous.parse()?;
        let rank_0 = Rank0 {
            address: &address,
            deadline,
        };
        let meeting = Meeting {
            mine,
            deadline,
            identity: identity.as_ref(),
        };
        let (peers, task) = if mine.rank == Rank(0) {
            let (listener, at) = rank_0.listen(wait.notify).map_err(failed)?;
            let data = bind(at.ip()).map_err(|e| failed(e.to_string()))?;
            let peers = meeting.host(&listener, data, task, wait.notify);
            (peers.map_err(failed)?, task.to_owned())
        } else {
            let stream = rank_0.connect(wait.notify).map_err(failed)?;
            let here = stream.local_addr().map_err(|e| failed(e.to_string()))?;
            let data_address = bind(here.ip()).map_err(|e| failed(e.to_string()))?;
            let hello = MemberHello::of(mine, data_address);
            let stream = to_rank_0(stream, identity.as_ref(), deadline);
            let mut stream = stream.map_err(failed)?;
            let met = meeting.attend(&mut stream, &hello, wait.notify);
            met.map_err(failed)?
        };
        check_secret(mine, &peers).map_err(failed)?;
        let ip = |rank: usize| peers[rank].ip();
        let here = ip(mine.rank.index());
        let on_this_host =
            |ranks: std::ops::Range<usize>| ranks.filter(|rank| ip(*rank) == here).count() as u32;
        Ok(Arc::new(Self {
            identity,
            assignment: Assignment {
                job: mine.job.clone(),
                generation: Generation::FIRST,
                policy: MembershipPolicy::Fixed,
                rank: mine.rank,
                world_size: mine.world_size,
                local_rank: on_this_host(0..mine.rank.index()),
                local_world_size: on_this_host(0..peers.len()),
                peers,
                purpose: GenerationPurpose::Train,
                awaited: 0,
                task,
            },
        }))
    }
}

impl FixedMember {
    /// Returns the certificate of this member; `None` if the members have no secret.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }
}

/// Refuses a secret that can be guessed, if members are on several hosts.
fn check_secret(mine: &FixedRank, peers: &[SocketAddr]) -> Result<(), String> {
    let length = mine.token.chars().count();
    let is_far = peers.iter().any(|peer| !peer.ip().is_loopback());
    match is_far && (1..TOKEN_LENGTH_MIN).contains(&length) {
        true => Err(format!(
            "the token has {length} characters, and connections between hosts need at least {TOKEN_LENGTH_MIN}\n  \
             help: `openssl rand -hex 32` prints one"
        )),
        false => Ok(()),
    }
}

impl JobMember for FixedMember {
    fn next(&self, departure: Option<Departure>) -> Result<Assignment, MembershipError> {
        match departure {
            None => Ok(self.assignment.clone()),
            Some(Departure { cause, .. }) => Err(MembershipError::FixedMembers { cause }),
        }
    }

    fn pending(&self) -> Option<Generation> {
        None
    }

    fn entered(&self, _: Generation, _: Arc<dyn Collectives>) {}

    fn reached(&self, _: Milestone) {}

    fn farewell(&self) -> bool {
        true
    }

    fn drain(&self) {}
}

#[cfg(test)]
mod tests;
