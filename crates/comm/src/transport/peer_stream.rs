//! [`PeerStream`]: the stream to one peer, outside a transport.

use std::io;

use ronde_wire::WireStream;

use super::striped::Stripes;
use super::tcp;

/// The stream to one peer that was taken out of a transport, which a later transport can continue.
#[derive(Debug)]
pub struct PeerStream {
    /// Its connections by their numbers.
    pub(crate) connections: Vec<WireStream>,
    /// The state of a stream over several connections; `None` for a new stream.
    pub(crate) stripes: Option<Stripes>,
    /// Its sockets are set up for a transport.
    pub(crate) is_set_up: bool,
}

impl PeerStream {
    /// Returns a stream over connections that have carried nothing but the hellos.
    pub(crate) fn new(connections: Vec<WireStream>) -> Self {
        Self {
            connections,
            stripes: None,
            is_set_up: false,
        }
    }

    /// Returns a stream that was taken out of a transport.
    pub(super) fn released(connection: WireStream) -> Self {
        Self {
            is_set_up: true,
            ..Self::new(vec![connection])
        }
    }

    /// Prepares the sockets for a transport.
    pub(crate) fn set_up(&mut self) -> io::Result<()> {
        if !self.is_set_up {
            self.connections
                .iter()
                .try_for_each(|stream| tcp::set_up(stream.socket()))?;
            self.is_set_up = true;
        }
        Ok(())
    }

    /// Returns whether the peer is on this host, according to the first connection.
    pub(crate) fn is_within_host(&self) -> bool {
        let first = self.connections.first();
        first.is_some_and(WireStream::has_one_address)
    }
}
