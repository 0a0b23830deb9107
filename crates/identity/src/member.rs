//! [`Member`]: the owner of a certificate, and its name inside the certificate.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use ronde_core::Rank;
use rustls::pki_types::ServerName;

use crate::error::IdentityError;

/// A member of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Member {
    /// The process that coordinates the job.
    Coordinator,
    /// The agent of a host.
    Host(String),
    /// A worker process, identified by its rank in the current generation.
    Rank(Rank),
    /// A worker process, identified by the name that it keeps in all generations.
    Worker(u64),
}

/// The server name of the coordinator of any job, used with a token.
const ANY_COORDINATOR: &str = "coordinator.ronde.internal";

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("the coordinator"),
            Self::Host(host) => write!(f, "host {host}"),
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Worker(worker) => write!(f, "worker {worker}"),
        }
    }
}

impl Member {
    /// Returns the name in the certificate. Names of jobs and hosts may be any text, so they are
    /// hashed.
    pub(crate) fn dns_name(&self, job: &str) -> String {
        let who = match self {
            Self::Coordinator => "coordinator".to_owned(),
            Self::Host(host) => format!("host-{}", label(host)),
            Self::Rank(rank) => format!("rank-{rank}"),
            Self::Worker(worker) => format!("worker-{worker}"),
        };
        format!("{who}.{}.ronde.internal", job_label(job))
    }

    /// Returns all names in the certificate: a coordinator can also be reached by hosts that know
    /// its authority, but not its job yet.
    pub(crate) fn dns_names(&self, job: &str) -> Vec<String> {
        let any = matches!(self, Self::Coordinator).then(|| ANY_COORDINATOR.to_owned());
        std::iter::once(self.dns_name(job)).chain(any).collect()
    }

    /// Returns the same name as a TLS server name.
    pub(crate) fn server_name(&self, job: &str) -> Result<ServerName<'static>, IdentityError> {
        ServerName::try_from(self.dns_name(job))
            .map_err(|error| IdentityError::crypto("encode the name of a member", &error))
    }
}

/// Returns the server name that every coordinator has.
pub(crate) fn any_coordinator() -> Result<ServerName<'static>, IdentityError> {
    ServerName::try_from(ANY_COORDINATOR)
        .map_err(|error| IdentityError::crypto("encode the name of the coordinator", &error))
}

/// Returns the hash that identifies a job in its certificates.
pub(crate) fn job_label(job: &str) -> String {
    format!("job-{}", label(job))
}

/// Returns 32 hexadecimal digits of the hash of a text.
fn label(text: &str) -> String {
    hex(&digest(&SHA256, text.as_bytes()).as_ref()[..16])
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
