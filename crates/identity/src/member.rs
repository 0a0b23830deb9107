//! [`Member`]: who a certificate is for, in words and as the name inside the certificate.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use ronde_core::Rank;
use rustls::pki_types::ServerName;

use crate::IdentityError;

/// Somebody who belongs to a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Member {
    /// The process that leads the job.
    Coordinator,
    /// The agent of a host.
    Host(String),
    /// A worker process, by its rank in the current generation.
    Rank(Rank),
    /// A worker process, by the name that it keeps through all generations.
    Worker(u64),
}

/// Under this name the coordinator of whatever job a token belongs to is dialled.
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
    /// The name in the certificate. Names of jobs and hosts may be any text, so they go in as a hash.
    pub(crate) fn dns_name(&self, job: &str) -> String {
        let who = match self {
            Self::Coordinator => "coordinator".to_owned(),
            Self::Host(host) => format!("host-{}", label(host)),
            Self::Rank(rank) => format!("rank-{rank}"),
            Self::Worker(worker) => format!("worker-{worker}"),
        };
        format!("{who}.{}.ronde.internal", job_label(job))
    }

    /// All names in the certificate: a coordinator is also found by those who know its authority but not
    /// its job yet.
    pub(crate) fn dns_names(&self, job: &str) -> Vec<String> {
        let any = matches!(self, Self::Coordinator).then(|| ANY_COORDINATOR.to_owned());
        std::iter::once(self.dns_name(job)).chain(any).collect()
    }

    /// The same name as a dialler asks for it.
    pub(crate) fn server_name(&self, job: &str) -> Result<ServerName<'static>, IdentityError> {
        ServerName::try_from(self.dns_name(job))
            .map_err(|error| IdentityError::crypto("naming a member", &error))
    }
}

/// The name of whatever coordinator a known authority has named.
pub(crate) fn any_coordinator() -> Result<ServerName<'static>, IdentityError> {
    ServerName::try_from(ANY_COORDINATOR)
        .map_err(|error| IdentityError::crypto("naming the coordinator", &error))
}

/// What stands for a job in all its certificates.
pub(crate) fn job_label(job: &str) -> String {
    format!("job-{}", label(job))
}

/// 32 hexadecimal digits that stand for any text.
fn label(text: &str) -> String {
    hex(&digest(&SHA256, text.as_bytes()).as_ref()[..16])
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
