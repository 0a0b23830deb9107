//! [`Agent`]: this host's part of a job whose coordinator is another process, here or on another
//! host. It starts and watches workers for the coordinator, and forwards their messages.

use std::net::SocketAddr;
use std::time::Duration;

use ronde_elastic::{JobPhase, Settings};
use ronde_identity::{Identity, JoinToken, Member};

use crate::clock;
use crate::error::ClusterError;
use crate::job::{JobFolder, job_error};
use crate::messages::{PROTOCOL, RequestBody, TokenReply, TokenRequest};
use crate::remote_coordinator::{AgentIdentity, Dialer, RemoteCoordinator};
use crate::secure::{DialError, call};

/// Time limit for one request for a certificate.
const CALL_MAX: Duration = Duration::from_secs(5);

/// The data needed to find and join a job.
#[derive(Debug, Clone)]
pub struct Invitation {
    /// The addresses of coordinators.
    pub addresses: Vec<SocketAddr>,
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

    /// Sends a request to the leading coordinator, within `limit`.
    ///
    /// # Errors
    /// Returns [`ClusterError::Over`] if no coordinator answers and the folder shows that the job
    /// is over; otherwise as [`Agent::join`].
    pub(crate) fn ask(
        &self,
        question: &mut dyn FnMut() -> RequestBody,
        limit: Duration,
    ) -> Result<TokenReply, ClusterError> {
        let deadline = clock::now() + limit;
        let mut hints = Vec::new();
        loop {
            let (mut tried, mut may_appear) = (Vec::new(), false);
            let listed = self
                .folder
                .as_ref()
                .and_then(|folder| folder.coordinators().ok());
            let listed = listed.unwrap_or_default();
            let addresses = listed.iter().chain(&self.addresses).chain(&hints);
            let mut addresses: Vec<SocketAddr> = addresses.copied().collect();
            addresses.dedup();
            for address in addresses {
                let question = TokenRequest {
                    protocol: PROTOCOL,
                    token: self.token.to_text().expose().to_owned(),
                    asks: question(),
                };
                let left = deadline.saturating_duration_since(clock::now());
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
                    Err(DialError::Never(why)) => tried.push(format!("{address}: {why}")),
                    Err(DialError::Later(why)) => {
                        may_appear = true;
                        tried.push(format!("{address}: {why}"));
                    }
                }
            }
            self.refuse_over()?;
            // No coordinator is listed yet: it may just be starting.
            may_appear |= tried.is_empty();
            if !may_appear || clock::now() >= deadline {
                if tried.is_empty() {
                    tried.push("no coordinator is listed".to_owned());
                }
                return Err(ClusterError::NoCoordinator { tried });
            }
            clock::pause(Duration::from_millis(50));
        }
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
    /// Joins a job as `host` with `slots` slots for workers, within `timeout`. With `follows`, the
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
        timeout: Duration,
    ) -> Result<Self, ClusterError> {
        let deadline = clock::now() + timeout;
        let mut asks = || RequestBody::Certificate {
            host: host.to_owned(),
        };
        let (job, text) = match invitation.ask(&mut asks, timeout)? {
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
        let remote = RemoteCoordinator::begin(dialer, me, deadline, timeout)?;
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
