//! [`Security`]: whether a group's connections are plain or TLS, and which member is expected at each rank.

use std::net::SocketAddr;
use std::sync::Arc;

use ronde_core::{CollectiveError, Rank};
use ronde_identity::rustls::{ClientConfig, ServerConfig};
use ronde_identity::{Identity, Member};

use crate::program::invalid;

/// The protocol's name in TLS (ALPN).
const PROTOCOL: &[u8] = b"ronde-comm/1";

/// How the members of a group authenticate each other. Must be the same kind on all members.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Security {
    /// Plain TCP, only while every member listens on a loopback address: joining across hosts is
    /// refused. Any user who can run programs on this host can read the traffic or join.
    #[default]
    PlainLoopbackOnly,
    /// Plain TCP on any address: the traffic can be read, and any process that reaches a port can join.
    Plain,
    /// TLS 1.3; both sides present a certificate of the job's authority.
    Tls(TlsMembers),
}

impl Security {
    /// Uses TLS in a group of all ranks: group rank `r` must present the certificate of rank `r`.
    #[must_use]
    pub fn tls(identity: Identity) -> Self {
        let members = None;
        Self::Tls(TlsMembers { identity, members })
    }

    /// Uses TLS in any group: `members` lists the member at each group rank, this one included.
    #[must_use]
    pub fn tls_among(identity: Identity, members: Vec<Member>) -> Self {
        let members = Some(members.into());
        Self::Tls(TlsMembers { identity, members })
    }

    /// Returns the same security for a sub-group whose rank `i` is rank `members[i]` of this group.
    pub(crate) fn among(&self, members: &[usize]) -> Self {
        let Self::Tls(mine) = self else {
            return self.clone();
        };
        let of = |&rank: &usize| mine.member(rank as u32);
        Self::tls_among(mine.identity.clone(), members.iter().map(of).collect())
    }

    /// Refuses plain connections to other hosts unless they were requested explicitly.
    pub(crate) fn check_addresses(
        &self,
        listening: SocketAddr,
        peers: &[SocketAddr],
    ) -> Result<(), CollectiveError> {
        if !matches!(self, Self::PlainLoopbackOnly) {
            return Ok(());
        }
        let far = peers.iter().chain([&listening]);
        match far.into_iter().find(|at| !at.ip().is_loopback()) {
            None => Ok(()),
            Some(at) => Err(invalid(
                "joining a group",
                format!(
                    "plain connections on {at}, which is not a loopback address, must be requested explicitly; \
                     help: give the group an identity, for TLS; processes that another launcher has started need the same \
                     RONDE_TOKEN or RONDE_TOKEN_FILE"
                ),
            )),
        }
    }

    /// Returns the TLS settings for a group of `size`; `None` for plain connections.
    pub(crate) fn keys(&self, size: usize) -> Result<Option<TlsKeys>, CollectiveError> {
        let Self::Tls(TlsMembers { identity, members }) = self else {
            return Ok(None);
        };
        if let Some(members) = members
            && members.len() != size
        {
            let problem = format!("{} members given for a group of {size}", members.len());
            return Err(invalid("joining a group", problem));
        }
        let failed = |error: ronde_identity::IdentityError| CollectiveError::Connect {
            what: "cannot set up TLS".to_owned(),
            cause: error.to_string(),
        };
        Ok(Some(TlsKeys {
            client: identity.client_config(PROTOCOL).map_err(failed)?,
            server: identity.server_config(PROTOCOL).map_err(failed)?,
            identity: identity.clone(),
            members: members.clone(),
        }))
    }
}

/// This member's identity, and the members whose certificates it expects.
#[derive(Debug, Clone)]
pub struct TlsMembers {
    identity: Identity,
    members: Option<Arc<[Member]>>,
}

impl TlsMembers {
    /// Returns the member expected at a group rank.
    fn member(&self, group_rank: u32) -> Member {
        expected(self.members.as_deref(), group_rank)
    }
}

/// Returns the member expected at a group rank: the listed one, or the rank of that number.
fn expected(members: Option<&[Member]>, group_rank: u32) -> Member {
    let named = members.and_then(|members| members.get(group_rank as usize).cloned());
    named.unwrap_or(Member::Rank(Rank(group_rank)))
}

/// TLS settings of one member of one group.
#[derive(Debug)]
pub(crate) struct TlsKeys {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) identity: Identity,
    members: Option<Arc<[Member]>>,
}

impl TlsKeys {
    /// Returns the member expected at a group rank.
    pub(crate) fn member(&self, group_rank: u32) -> Member {
        expected(self.members.as_deref(), group_rank)
    }
}
