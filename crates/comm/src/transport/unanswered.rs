//! Finds connections whose peer acknowledges nothing, in the system's table of connections.
//!
//! Acknowledgements are sent by the other host's kernel, even if its process is stopped or
//! hangs. So data that was retransmitted and is still not acknowledged indicates that a path
//! is cut, in one direction or both, or that a host is down.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, TcpStream};

/// Tables of this thread's network namespace.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// State of a connection's timer that runs until sent data is acknowledged.
const SENDS_AGAIN: &str = "01";

/// Both ends of a connection, this one first.
type ConnectionEnds = [(IpAddr, u16); 2];

/// Returns the indices of streams whose peer acknowledges nothing; none if the table does not exist.
///
/// Cost: reads the table of all connections of the system, some microseconds each.
pub(super) fn unanswered<'a>(streams: impl Iterator<Item = (usize, &'a TcpStream)>) -> Vec<usize> {
    let tables = TABLES.map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let silent: HashSet<ConnectionEnds> = tables.iter().flat_map(|table| silent(table)).collect();
    let is_silent = |stream: &TcpStream| {
        let end = |at: SocketAddr| (at.ip(), at.port());
        match (stream.local_addr(), stream.peer_addr()) {
            (Ok(here), Ok(there)) => silent.contains(&[end(here), end(there)]),
            _ => false,
        }
    };
    let silent = streams.filter(|(_, stream)| is_silent(stream));
    silent.map(|(place, _)| place).collect()
}

/// Returns the connections of a table on which data was retransmitted without an acknowledgement.
fn silent(table: &str) -> impl Iterator<Item = ConnectionEnds> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let ends = [end(fields.next()?)?, end(fields.next()?)?];
        let (_state, _bytes) = (fields.next()?, fields.next()?);
        let (timer, _) = fields.next()?.split_once(':')?;
        let times = u32::from_str_radix(fields.next()?, 16).ok()?;
        (timer == SENDS_AGAIN && times > 0).then_some(ends)
    })
}

/// Parses `0100007F:1F90`: 4-byte words in memory order, and a port.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::new();
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
    };
    Some((address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 01004D0A:A001 02004D0A:1F90 01 00000040:00000000 01:00000012 00000003     0        0 2 4 0 20 4 30 10 -1
   2: 01004D0A:A002 02004D0A:1F90 01 00000040:00000000 01:00000002 00000000     0        0 3 4 0 20 4 30 10 -1
   3: 01004D0A:A003 02004D0A:1F90 01 00000040:00000000 04:00000012 00000002     0        0 4 4 0 20 4 30 10 -1
   4: 00000000000000000000000001000000:A004 00000000000000000000000001000000:1F90 01 00000001:00000000 01:0001 0000000A
   5: nonsense";

    #[test]
    #[cfg(target_endian = "little")]
    fn only_retransmitted_data_without_an_acknowledgement_counts() {
        let far = [
            (IpAddr::from([10, 77, 0, 1]), 0xA001),
            (IpAddr::from([10, 77, 0, 2]), 8080),
        ];
        let own = IpAddr::from(Ipv6Addr::LOCALHOST);
        let near = [(own, 0xA004), (own, 8080)];
        assert_eq!(silent(TABLE).collect::<Vec<_>>(), [far, near]);
    }

    #[test]
    fn a_process_that_does_not_read_still_acknowledges() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _other_end = listener.accept().unwrap().0;
        dialled.write_all(b"unread").unwrap();
        assert!(unanswered([(7, &dialled)].into_iter()).is_empty());
    }
}
