//! Sub-groups of a group: split by colour, or along an axis of a mesh.
//!
//! A sub-group has its own streams, progress thread, order of operations and deadline. It
//! deliberately shares no stream with its parent: frames of one stream are read in order, so a large
//! frame of one group that is not expected yet would block all others, and two groups whose operations
//! the ranks wait for in different orders could deadlock.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use ronde_core::byte_reader::number;
use ronde_core::{CollectiveError, Collectives, CollectivesExt, Group, GroupRank, Mesh, Rank};
use ronde_schedule::Hosts;

use crate::config::GroupConfig;
use crate::connect::bind;
use crate::group::ProcessGroup;
use crate::program::invalid;
use crate::transport::in_process::{self, InProcess};

const NAME: &str = "split";
/// Size of an encoded request, in bytes.
const REQUEST_BYTES: usize = 32;

/// How a group was made, which decides how its sub-groups are made.
#[derive(Debug, Clone)]
pub(crate) enum GroupOrigin {
    /// It has one member.
    Alone,
    /// Its members listen; sub-groups listen on the same address, on other ports.
    Sockets(IpAddr),
    /// Its members are threads of one process.
    Threads(Arc<SplitRegistry>),
    /// The caller provided the streams: no others can be made.
    Foreign,
}

/// Number of the split, and colour.
type SplitId = (u64, u32);
/// Streams of a sub-group that its members have not taken yet, and the sub-group's own registry.
type PendingSplit = (Vec<Option<InProcess>>, Arc<SplitRegistry>);

/// Where the threads of one process exchange the streams of sub-groups.
#[derive(Debug, Default)]
pub(crate) struct SplitRegistry {
    pending: Mutex<BTreeMap<SplitId, PendingSplit>>,
}

impl SplitRegistry {
    /// Takes this member's streams of a sub-group; the first member that calls makes those of all.
    fn take(&self, split_id: SplitId, rank: usize, size: usize) -> Option<(InProcess, Arc<Self>)> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let cradle = pending.entry(split_id).or_insert_with(|| {
            let streams = in_process::connect(size).into_iter().map(Some).collect();
            (streams, Arc::default())
        });
        let mine = cradle.0.get_mut(rank)?.take()?;
        let own = Arc::clone(&cradle.1);
        if cradle.0.iter().all(Option::is_none) {
            pending.remove(&split_id);
        }
        Some((mine, own))
    }
}

/// A member's request in a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SplitRequest {
    /// The colour; `None` if the member is in no sub-group.
    colour: Option<u32>,
    key: u32,
    /// The listening address; `None` when sockets are not used, or when listening failed.
    address: Option<SocketAddr>,
}

impl SplitRequest {
    fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[0] = u8::from(self.colour.is_some());
        out[4..8].copy_from_slice(&self.colour.unwrap_or(0).to_le_bytes());
        out[8..12].copy_from_slice(&self.key.to_le_bytes());
        let Some(address) = self.address else {
            return out;
        };
        out[12..14].copy_from_slice(&address.port().to_le_bytes());
        match address.ip() {
            IpAddr::V4(ip) => {
                out[1] = 4;
                out[16..20].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out[1] = 6;
                out[16..32].copy_from_slice(&ip.octets());
            }
        }
        out
    }

    fn decode(bytes: &[u8; REQUEST_BYTES]) -> Self {
        let word = |at: usize| number(&bytes[at..at + 4]) as u32;
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[16..]);
        let ip = match bytes[1] {
            4 => Some(IpAddr::V4(Ipv4Addr::new(
                octets[0], octets[1], octets[2], octets[3],
            ))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(octets))),
            _ => None,
        };
        let port = u16::from_le_bytes([bytes[12], bytes[13]]);
        Self {
            colour: (bytes[0] == 1).then(|| word(4)),
            key: word(8),
            address: ip.map(|ip| SocketAddr::new(ip, port)),
        }
    }
}

impl ProcessGroup {
    /// Returns the sub-group of the members that give the same colour, ordered by key and, for
    /// equal keys, by their ranks here; `None` for members that give no colour. All members must call
    /// it, in the same order relative to their other operations.
    ///
    /// A sub-group has its own order, deadline and failures: this group continues when it fails.
    /// It is named after this group. A process may be in any number of sub-groups. Cost: one all_gather of
    /// 32 bytes, then the connections of the sub-group and a thread.
    ///
    /// # Errors
    /// Those of an operation and of joining; [`CollectiveError::Invalid`] for a group over streams
    /// that the caller provided.
    pub fn split(&self, colour: Option<u32>, key: u32) -> Result<Option<Self>, CollectiveError> {
        self.split_with(colour, key, |_| {})
    }

    /// Splits as [`ProcessGroup::split`] does; `configure` may change the name, deadlines and algorithm
    /// of the sub-group, in the same way on all its members.
    ///
    /// # Errors
    /// As for [`ProcessGroup::split`].
    pub fn split_with(
        &self,
        colour: Option<u32>,
        key: u32,
        configure: impl FnOnce(&mut GroupConfig),
    ) -> Result<Option<Self>, CollectiveError> {
        if matches!(self.origin, GroupOrigin::Foreign) {
            let problem = "the group uses streams that its caller provided";
            return Err(invalid(NAME, problem.to_owned()));
        }
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        let bound = match (&self.origin, colour) {
            (GroupOrigin::Sockets(address), Some(_)) => Some(bind(*address)),
            _ => None,
        };
        let address = match &bound {
            Some(Ok((_, address))) => Some(*address),
            _ => None,
        };
        // Sent even when listening failed: the other members must not wait for this one.
        let requests = self.exchange_requests(SplitRequest {
            colour,
            key,
            address,
        })?;
        let listener = bound.transpose()?.map(|(listener, _)| listener);
        let Some(colour) = colour else {
            return Ok(None);
        };
        let mut members: Vec<usize> = (0..requests.len())
            .filter(|&rank| requests[rank].colour == Some(colour))
            .collect();
        members.sort_by_key(|&rank| requests[rank].key);
        let me = self.rank().index();
        let Some(rank) = members.iter().position(|&member| member == me) else {
            return Err(invalid(
                NAME,
                "this member's own request was lost".to_owned(),
            ));
        };
        let mut config = self.config().clone();
        config.name = format!("{}.{number}.{colour}", config.name);
        let hosts = members
            .iter()
            .map(|&member| self.chooser().hosts().of(member));
        config.hosts = Some(Hosts::new(&hosts.collect::<Vec<_>>()));
        config.connection_pool = None;
        config.security = self.config().security.among(&members);
        config.members = (members.iter())
            .map(|&member| match self.config().members.get(member) {
                Some(first) => *first,
                None => GroupRank(member as u32),
            })
            .collect();
        configure(&mut config);
        config.rank = GroupRank(rank as u32);
        let addresses = members.iter().map(|&member| requests[member].address);
        let group = self.join(config, (number, colour), addresses.collect(), listener)?;
        self.remember_sub_group(&group);
        Ok(Some(group))
    }

    /// Returns the sub-group of the members that differ from this one along `axis` only, in the order of
    /// that coordinate. Ranks of the mesh are those of this group; all members must call it. It is
    /// named after the axis and its first rank.
    ///
    /// # Errors
    /// As for [`ProcessGroup::split`]; [`CollectiveError::Invalid`] for a mesh of another size or
    /// without that axis.
    pub fn split_mesh(&self, mesh: &Mesh, axis: &str) -> Result<Self, CollectiveError> {
        if mesh.len() as usize != self.size() {
            let problem = format!(
                "the mesh has {} ranks, the group has {}",
                mesh.len(),
                self.size()
            );
            return Err(invalid(NAME, problem));
        }
        let me = Rank(self.rank().0);
        let members = mesh.group(me, axis);
        let members = members.ok_or_else(|| invalid(NAME, format!("no such axis: {axis}")))?;
        let key = members.iter().position(|&rank| rank == me).unwrap_or(0) as u32;
        let first = members[0].0;
        let name = format!("{axis}.{first}");
        let group = self.split_with(Some(first), key, |config| config.name = name)?;
        group.ok_or_else(|| invalid(NAME, "the split made no group".to_owned()))
    }

    fn exchange_requests(
        &self,
        request: SplitRequest,
    ) -> Result<Vec<SplitRequest>, CollectiveError> {
        let gathered = self.all_gather(&request.encode())?;
        let (requests, rest) = gathered.as_chunks::<REQUEST_BYTES>();
        if requests.len() != self.size() || !rest.is_empty() {
            let problem = format!(
                "received {} bytes from {} members",
                gathered.len(),
                self.size()
            );
            return Err(invalid(NAME, problem));
        }
        Ok(requests.iter().map(SplitRequest::decode).collect())
    }

    fn join(
        &self,
        config: GroupConfig,
        split_id: SplitId,
        addresses: Vec<Option<SocketAddr>>,
        listener: Option<TcpListener>,
    ) -> Result<Self, CollectiveError> {
        let (rank, size) = (config.rank.index(), addresses.len());
        let known = Some(self.cost_model()).filter(|model| model.is_measured);
        let known = known.map(|model| match size == self.size() {
            true => model,
            false => model.uncorrected(),
        });
        if size == 1 {
            return Ok(Self::alone(config));
        }
        if let GroupOrigin::Threads(nursery) = &self.origin {
            let (streams, own) = nursery
                .take(split_id, rank, size)
                .ok_or_else(|| invalid(NAME, "the members split in different orders".to_owned()))?;
            let group = Self::over(config, size, Box::new(streams))?;
            if let Some(model) = known {
                group.chooser().set_model(model);
            }
            return Ok(group.with_origin(GroupOrigin::Threads(own)));
        }
        let peers: Option<Vec<SocketAddr>> = addresses.into_iter().collect();
        match (listener, peers) {
            (Some(listener), Some(peers)) => Self::connect_by(config, listener, &peers, known),
            _ => Err(CollectiveError::Connect {
                what: format!("cannot join group {}", config.name),
                cause: "a member failed to listen".to_owned(),
            }),
        }
    }
}

impl Group for ProcessGroup {
    fn sub_group(
        &self,
        colour: Option<u32>,
        key: u32,
    ) -> Result<Option<Arc<dyn Group>>, CollectiveError> {
        let group = self.split(colour, key)?;
        Ok(group.map(|group| Arc::new(group) as Arc<dyn Group>))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_requests_are_the_same_after_encoding_and_decoding() {
        let addresses = [None, Some("10.1.2.3:65535"), Some("[fe80::1]:80")];
        for address in addresses.map(|text| text.map(|text| text.parse().unwrap())) {
            for colour in [None, Some(0), Some(u32::MAX)] {
                let key = 7;
                let request = SplitRequest {
                    colour,
                    key,
                    address,
                };
                assert_eq!(SplitRequest::decode(&request.encode()), request);
            }
        }
    }
}
