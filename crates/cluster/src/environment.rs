//! The environment variables of a rank.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use ronde_core::Rank;
use ronde_protocol::WorkerId;

use crate::spec::LaunchSpec;
use crate::token::Token;
use crate::variables;

/// Returns a port of 127.0.0.1 that is currently free.
pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

/// Returns the variables of one rank; those of the job are last and take precedence.
pub(crate) fn of_rank(
    spec: &LaunchSpec,
    rank: Rank,
    worker: WorkerId,
    control: SocketAddr,
    token: &Token,
    master_port: u16,
) -> Vec<(OsString, OsString)> {
    let role = spec
        .role(rank)
        .map(|role| (variables::RONDE_ROLE.into(), role.into()));
    let (rank, world_size) = (rank.to_string(), spec.world_size.to_string());
    let own = [
        (variables::RANK, rank.clone()),
        (variables::WORLD_SIZE, world_size.clone()),
        (variables::LOCAL_RANK, rank.clone()),
        (variables::LOCAL_WORLD_SIZE, world_size.clone()),
        (variables::MASTER_ADDR, Ipv4Addr::LOCALHOST.to_string()),
        (variables::MASTER_PORT, master_port.to_string()),
        (variables::RONDE_CONTROL, control.to_string()),
        (variables::RONDE_TOKEN, token.secret().to_owned()),
        (variables::RONDE_RANK, rank),
        (variables::RONDE_WORKER, worker.to_string()),
        (variables::RONDE_WORLD_SIZE, world_size),
        (variables::RONDE_JOB, spec.job.clone()),
    ];
    let own = own.map(|(name, value)| (name.into(), value.into()));
    let of_job = spec.environment.iter().cloned();
    of_job.chain(own).chain(role).collect()
}
