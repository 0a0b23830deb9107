//! [`Agent`]: this host's part of a job whose coordinator is another process, here or elsewhere. It
//! starts and watches workers as the coordinator says, and carries what they say to it.

use std::net::SocketAddr;
use std::time::Duration;

use ronde_elastic::{JobPhase, Settings};
use ronde_identity::{Identity, JoinToken, Member};

use crate::clock;
use crate::error::ClusterError;
use crate::job::{JobFolder, job_error};
use crate::remote::{Dialler, Remote};
use crate::secure::{DialError, call};
use crate::talk::{Answer, Asks, PROTOCOL, Question};

/// How long one try for a certificate may take.
const CALL_MAX: Duration = Duration::from_secs(5);

/// How to find a job and be let in.
#[derive(Debug, Clone)]
pub struct Invitation {
    /// Where coordinators listen.
    pub addresses: Vec<SocketAddr>,
    /// Shows that this host may join, and whom it may trust.
    pub token: JoinToken,
    /// The job's folder, where this host has it: it tells where coordinators listen now.
    pub folder: Option<JobFolder>,
}

impl Invitation {
    /// The way into a job whose folder this host has.
    ///
    /// # Errors
    /// [`ClusterError::Job`] when the folder holds no token.
    pub fn of(folder: &JobFolder) -> Result<Self, ClusterError> {
        Ok(Self {
            addresses: Vec::new(),
            token: folder.token()?,
            folder: Some(folder.clone()),
        })
    }

    /// Asks a coordinator that leads, within `limit`.
    ///
    /// # Errors
    /// [`ClusterError::Over`] when nobody answers and the job's folder says so; as [`Agent::join`].
    pub(crate) fn ask(
        &self,
        question: &mut dyn FnMut() -> Asks,
        limit: Duration,
    ) -> Result<Answer, ClusterError> {
        let deadline = clock::now() + limit;
        let mut hints = Vec::new();
        loop {
            let (mut tried, mut may_come) = (Vec::new(), false);
            let listed = self
                .folder
                .as_ref()
                .and_then(|folder| folder.coordinators().ok());
            let listed = listed.unwrap_or_default();
            let addresses = listed.iter().chain(&self.addresses).chain(&hints);
            let mut addresses: Vec<SocketAddr> = addresses.copied().collect();
            addresses.dedup();
            for address in addresses {
                let question = Question {
                    protocol: PROTOCOL,
                    token: self.token.to_text().expose().to_owned(),
                    asks: question(),
                };
                let left = deadline.saturating_duration_since(clock::now());
                let limit = left.min(CALL_MAX).max(Duration::from_millis(1));
                match call(address, &self.token, &question, limit) {
                    Ok(Answer::Refused { reason }) => return Err(ClusterError::Refused { reason }),
                    Ok(Answer::StandsBy { others }) => {
                        may_come = true;
                        tried.push(format!("{address}: it stands by, no coordinator leads yet"));
                        hints.extend(others);
                    }
                    Ok(answer) => return Ok(answer),
                    Err(DialError::Never(why)) => tried.push(format!("{address}: {why}")),
                    Err(DialError::Later(why)) => {
                        may_come = true;
                        tried.push(format!("{address}: {why}"));
                    }
                }
            }
            self.refuse_over()?;
            // Nothing is known yet: the coordinator may just be starting.
            may_come |= tried.is_empty();
            if !may_come || clock::now() >= deadline {
                if tried.is_empty() {
                    tried.push("none has said where it listens".to_owned());
                }
                return Err(ClusterError::NoCoordinator { tried });
            }
            clock::pause(Duration::from_millis(50));
        }
    }
}

impl Invitation {
    /// A job that is over has no coordinator; its folder says so.
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
    pub(crate) remote: Remote,
}

impl Agent {
    /// Joins a job as `host` with this count of places for workers, within `timeout`. `follows`: all
    /// events of the job come to this agent's sinks, not only those of its own workers.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] for a wrong token or a name that another agent has,
    /// [`ClusterError::NoCoordinator`] when none answers.
    pub fn join(
        invitation: Invitation,
        host: &str,
        slots: u32,
        follows: bool,
        timeout: Duration,
    ) -> Result<Self, ClusterError> {
        let deadline = clock::now() + timeout;
        let mut asks = || Asks::Certificate {
            host: host.to_owned(),
        };
        let (job, text) = match invitation.ask(&mut asks, timeout)? {
            Answer::Certificate { job, identity } => (job, identity),
            _ => {
                return Err(ClusterError::Protocol {
                    problem: "no certificate in answer to the question for one".to_owned(),
                });
            }
        };
        let identity = Identity::from_pem(&job, Member::Host(host.to_owned()), &text)?;
        let random = crate::coordinator::random();
        let agent = random.map_err(|error| job_error("agent".as_ref(), error.to_string()))?;
        let dialler = Dialler::start(identity, invitation.addresses, invitation.folder);
        let remote = Remote::begin(dialler, host, agent, (slots, follows), deadline, timeout)?;
        Ok(Self { remote })
    }

    /// The name of the job.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.remote.welcome.job
    }

    /// What the workers are to do, not looked at.
    #[must_use]
    pub fn task(&self) -> &str {
        &self.remote.welcome.task
    }

    /// How the job is kept alive.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.remote.welcome.settings
    }

    /// Program and arguments of a worker; empty: a worker of ronde's own.
    #[must_use]
    pub fn command(&self) -> &[String] {
        &self.remote.welcome.command
    }
}
