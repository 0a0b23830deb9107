//! [`Worker::rpc`]: remote calls between the ranks of a job.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ronde_comm::ProcessGroup;
use ronde_core::{Collectives, CollectivesExt};
use ronde_identity::Member;
use ronde_rpc::{
    FunctionRegistry, RpcConfig, RpcError, RpcLimits, RpcNode, RpcPeer, RpcSecurity, RpcToken,
    StartProblem,
};

use crate::error::Error;
use crate::worker::Worker;

/// The bytes with which a rank describes itself to the others.
const CARD_BYTES: usize = 1_024;

impl Worker {
    /// Opens a node for remote calls: this worker is `rank-<n>` with the given role, and may call the functions of all
    /// other ranks in `group`. The ranks exchange addresses through the group once; between hosts they use the certificates
    /// of the job, and on one host a token that rank 0 draws.
    ///
    /// # Errors
    /// The group fails, or a connection between hosts has no certificate.
    pub fn rpc(
        &self,
        group: &ProcessGroup,
        role: &str,
        functions: FunctionRegistry,
        limits: RpcLimits,
    ) -> Result<RpcNode, Error> {
        let interface = self.link().map(ronde_cluster::WorkerLink::interface);
        let interface = interface.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let (listener, address) = ronde_comm::bind(interface)?;
        let token = RpcToken::random().map_err(StartProblem::system("draw a random token"))?;
        let card = serde_json::json!([role, address, token.expose()]).to_string();
        if card.len() > CARD_BYTES {
            let cause = StartProblem::Role {
                bytes: role.len(),
                limit: CARD_BYTES - 200,
            };
            return Err(RpcError::Start { cause }.into());
        }
        let mut bytes = card.into_bytes();
        bytes.resize(CARD_BYTES, b' ');
        let cards = group.all_gather(&bytes)?;
        let cards: Result<Vec<(String, SocketAddr, String)>, _> = cards
            .chunks(CARD_BYTES)
            .map(serde_json::from_slice)
            .collect();
        let cards = cards.map_err(StartProblem::system(
            "read the announcements of the workers",
        ))?;
        let link = self.link().filter(|_| !address.ip().is_loopback());
        let identity = link.and_then(|link| link.identity().cloned().zip(link.peers()));
        let generation = self.assignment().generation;
        let (security, members) = match identity {
            Some((identity, peers)) => {
                let members = peers.workers(generation).into_iter().map(Member::Worker);
                (RpcSecurity::Tls(identity), members.map(Some).collect())
            }
            None => {
                let shared = cards.first().map_or("", |(_, _, token)| token);
                let security = RpcSecurity::Token(RpcToken::new(shared));
                (security, vec![None; cards.len()])
            }
        };
        let name = |rank: usize| format!("rank-{rank}");
        let mine = group.rank().0 as usize;
        let peers = cards.into_iter().zip(members).enumerate();
        let peers = peers.filter(|(rank, _)| *rank != mine);
        let peers = peers.map(|(rank, ((role, address, _), member))| RpcPeer {
            name: name(rank),
            role,
            address,
            member,
        });
        let mut config = RpcConfig::new(&self.assignment().job, &name(mine), security);
        config.limits = limits;
        Ok(RpcNode::open(config, listener, peers.collect(), functions)?)
    }
}
