//! [`Agent`]: this host's part of a job whose coordinator is another process, here or on another
//! host. It starts and watches workers for the coordinator, and forwards their messages.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ronde_identity::{Identity, JoinToken, Member};
use ronde_protocol::{JobPhase, Settings};

use crate::error::ClusterError;
use crate::job::{JobFolder, job_error};
use crate::long_wait::{LongWait, WaitSettings};
use crate::messages::{PROTOCOL, RequestBody, TokenReply, TokenRequest};
use crate::peer_address::PeerAddress;
use crate::remote_coordinator::{AgentIdentity, Dialer, RemoteCoordinator};
use crate::secure::call;

/// Time limit for one request for a certificate.
const CALL_MAX: Duration = Duration::from_secs(5);
/// Pause between two rounds of attempts to reach a coordinator.
const REPEAT_AFTER: Duration = Duration::from_millis(50);

/// The data needed to find and join a job.
#[derive(Debug, Clone)]
pub struct Invitation {
    /// The addresses of coordinators, whose names are resolved again for each connection.
    pub addresses: Vec<PeerAddress>,
    /// Authorizes this host to join, and identifies the job's authority.
    pub token: JoinToken,
    /// The job's folder if this host has it; it lists the current coordinators.
    pub folder: Option<JobFolder>,
}

impl Invitation {
    /// Returns the invitation of a job whose folder this host has.
    ///
    /// # Errors
    /// Returns [`ClusterError::Job`] if the folder contains no token.
    pub fn of(folder: &JobFolder) -> Result<Self, ClusterError> {
        Ok(Self {
            addresses: Vec::new(),
            token: folder.token()?,
            folder: Some(folder.clone()),
        })
    }

    /// Sends a request to the leading coordinator, within the limit of `wait`.
    ///
    /// # Errors
    /// Returns [`ClusterError::Over`] if no coordinator answers and the folder shows that the job
    /// is over; otherwise as [`Agent::join`].
    pub(crate) fn ask(
        &self,
        question: &mut dyn FnMut() -> RequestBody,
        wait: WaitSettings<'_>,
    ) -> Result<TokenReply, ClusterError> {
        let deadline = ronde_clock::now() + wait.timeout;
        let mut long = LongWait::begin("a coordinator".to_owned(), deadline, wait.notify);
        let mut hints = Vec::new();
        loop {
            let (addresses, mut tried) = self.candidates(&hints, deadline);
            // A name may get its address later.
            let mut may_appear = !tried.is_empty();
            for address in addresses {
                let question = TokenRequest {
                    protocol: PROTOCOL,
                    token: self.token.to_text().expose().to_owned(),
                    asks: question(),
                };
                let left = deadline.saturating_duration_since(ronde_clock::now());
                let limit = left.min(CALL_MAX).max(Duration::from_millis(1));
                match call(address, &self.token, &question, limit) {
                    Ok(TokenReply::Refused { reason }) => {
                        return Err(ClusterError::Refused { reason });
                    }
                    Ok(TokenReply::StandsBy { others }) => {
                        may_appear = true;
                        tried.push(format!("{address}: in standby; no coordinator leads yet"));
                        hints.extend(others);
                    }
                    Ok(answer) => return Ok(answer),
                    Err(error) => {
                        may_appear |= !error.is_final();
                        tried.push(format!("{address}: {error}"));
                    }
                }
            }
            self.refuse_over()?;
            // No coordinator is listed yet: it may just be starting.
            may_appear |= tried.is_empty();
            if !may_appear || ronde_clock::now() >= deadline {
                if tried.is_empty() {
                    tried.push("no coordinator is listed".to_owned());
                }
                return Err(ClusterError::NoCoordinator { tried });
            }
            long.continues(&match tried.is_empty() {
                true => "none is listed".to_owned(),
                false => tried.join("; "),
            });
            ronde_clock::pause(REPEAT_AFTER);
        }
    }

    /// Returns the addresses to try now, and why names have none.
    fn candidates(
        &self,
        hints: &[SocketAddr],
        deadline: Instant,
    ) -> (Vec<SocketAddr>, Vec<String>) {
        let listed = self
            .folder
            .as_ref()
            .and_then(|folder| folder.coordinators().ok());
        let (mut found, mut problems) = (listed.unwrap_or_default(), Vec::new());
        for address in &self.addresses {
            let left = deadline.saturating_duration_since(ronde_clock::now());
            match address.resolve(left) {
                Ok(addresses) => found.extend(addresses),
                Err(problem) => problems.push(problem),
            }
        }
        found.extend(hints);
        let mut seen = BTreeSet::new();
        found.retain(|address| seen.insert(*address));
        (found, problems)
    }
}

impl Invitation {
    /// Returns an error if the folder shows that the job is over, because then it has no
    /// coordinator.
    fn refuse_over(&self) -> Result<(), ClusterError> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let phase = folder.record()?.map(|record| record.phase);
        match phase {
            Some(over @ (JobPhase::Finished | JobPhase::Stopped)) => Err(ClusterError::Over {
                job: folder.spec().job.clone(),
                is_finished: over == JobPhase::Finished,
            }),
            _ => Ok(()),
        }
    }
}

/// This host's part of a job.
pub struct Agent {
    pub(crate) remote: RemoteCoordinator,
}

impl Agent {
    /// Joins a job as `host` with `slots` slots for workers, within the limit of `wait`. With `follows`, the
    /// sinks receive all events of the job, not only those of this host's workers.
    ///
    /// # Errors
    /// Returns [`ClusterError::Refused`] for a wrong token or a host name that another agent uses,
    /// [`ClusterError::NoCoordinator`] if no coordinator answers.
    pub fn join(
        invitation: Invitation,
        host: &str,
        slots: u32,
        follows: bool,
        wait: WaitSettings<'_>,
    ) -> Result<Self, ClusterError> {
        let WaitSettings { timeout, notify } = wait;
        let deadline = ronde_clock::now() + timeout;
        let mut asks = || RequestBody::Certificate {
            host: host.to_owned(),
        };
        let asking = WaitSettings {
            timeout,
            notify: &mut *notify,
        };
        let (job, text) = match invitation.ask(&mut asks, asking)? {
            TokenReply::Certificate { job, identity } => (job, identity),
            _ => {
                return Err(ClusterError::Protocol {
                    problem: "the reply to a certificate request is not a certificate".to_owned(),
                });
            }
        };
        let identity = Identity::from_pem(&job, Member::Host(host.to_owned()), &text)?;
        let random = crate::coordinator::random();
        let agent = random.map_err(|error| job_error("agent".as_ref(), error.to_string()))?;
        let dialer = Dialer::start(identity, invitation.addresses, invitation.folder);
        let me = AgentIdentity {
            host: host.to_owned(),
            agent,
            slots,
            follows: follows.then_some(0),
        };
        let wait = WaitSettings { timeout, notify };
        let remote = RemoteCoordinator::begin(dialer, me, deadline, wait)?;
        Ok(Self { remote })
    }

    /// Returns the job's name.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.remote.welcome.job
    }

    /// Returns the number of this host's first slot; those of all hosts are numbered consecutively.
    #[must_use]
    pub fn first_slot(&self) -> u64 {
        self.remote.welcome.first.0
    }

    /// Returns the workers' task as opaque text.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.remote.welcome.task
    }

    /// Returns the membership settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.remote.welcome.settings
    }

    /// Returns program and arguments of a worker; empty for ronde's own worker.
    #[must_use]
    pub fn command(&self) -> &[String] {
        &self.remote.welcome.command
    }
}
