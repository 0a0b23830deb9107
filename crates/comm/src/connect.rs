//! Joining over TCP: every member dials those before it and listens for those after it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ronde_core::{CollectiveError, GroupRank};

use crate::clock;
use crate::hello::{Hello, PREFIX_BYTES, PROTOCOL_VERSION};

/// How long the other members are still answered after one was refused, so that they hear of it.
const GRACE: Duration = Duration::from_secs(2);
/// How long a stranger on the listening port may take to say who it is.
const STRANGER_MAX: Duration = Duration::from_secs(5);
/// How long those who dial may take after the limit to say what went wrong.
const DETAIL: Duration = Duration::from_millis(100);
/// Strangers that are listened to at once, beside the members.
const STRANGERS_MAX: usize = 64;
/// Between two looks at the listener or two tries of an address that refuses.
const PAUSE: Duration = Duration::from_millis(5);

/// Listens on a free port of `address`; the port is known before any peer is.
///
/// # Errors
/// [`CollectiveError::Connect`] with the system's answer.
pub fn bind(address: IpAddr) -> Result<(TcpListener, SocketAddr), CollectiveError> {
    let what = || format!("listening on {address}");
    let listener = TcpListener::bind((address, 0)).map_err(|e| failed(what(), &e))?;
    let at = listener.local_addr().map_err(|e| failed(what(), &e))?;
    Ok((listener, at))
}

fn failed(what: String, cause: &dyn ToString) -> CollectiveError {
    CollectiveError::Connect {
        what,
        cause: cause.to_string(),
    }
}

/// One peer's connection, or why there is none.
type Met = Result<(usize, TcpStream), CollectiveError>;

/// Connects to all other members; the streams by group rank, `None` for this one.
pub(crate) fn mesh(
    mine: &Hello,
    listener: TcpListener,
    peers: &[SocketAddr],
    limit: Duration,
) -> Result<Vec<Option<TcpStream>>, CollectiveError> {
    let rank = mine.rank as usize;
    let greeting: Arc<[u8]> = mine.encode()?.into();
    let mine = Arc::new(mine.clone());
    let end = clock::deadline(limit);
    let (met, meetings) = mpsc::channel::<Met>();
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let (mine, greeting) = (&mine, &greeting);
        for (peer, &address) in peers[..rank].iter().enumerate() {
            let met = met.clone();
            scope.spawn(move || {
                let stream = dial(mine, greeting, peer, address, end);
                // The receiver is gone once the outcome is decided.
                let _late = met.send(stream.map(|stream| (peer, stream)));
            });
        }
        let accepting = met;
        scope.spawn(move || {
            accept(&listener, mine, greeting, end, &accepting, &stopped);
        });
        let outcome = gather(mine, peers, &meetings, end + DETAIL);
        drop(stop);
        outcome
    })
}

/// Collects the connections; after a refusal the others are still heard for a while.
fn gather(
    mine: &Hello,
    peers: &[SocketAddr],
    meetings: &mpsc::Receiver<Met>,
    mut end: Instant,
) -> Result<Vec<Option<TcpStream>>, CollectiveError> {
    let mut streams: Vec<Option<TcpStream>> = peers.iter().map(|_| None).collect();
    let mut refused: Option<CollectiveError> = None;
    let mut heard = 1;
    while heard < peers.len() {
        match meetings.recv_timeout(clock::left(end)) {
            Ok(Ok((peer, stream))) => {
                if streams[peer].replace(stream).is_some() {
                    let what = format!("group rank {peer} joining");
                    refused.get_or_insert(failed(what, &"it came twice"));
                }
                heard += 1;
            }
            Ok(Err(error)) => {
                end = end.min(clock::deadline(GRACE));
                refused.get_or_insert(error);
                heard += 1;
            }
            Err(_) => {
                let missing: Vec<String> = (0..peers.len())
                    .filter(|&peer| peer != mine.rank as usize && streams[peer].is_none())
                    .map(|peer| format!("{peer} ({})", peers[peer]))
                    .collect();
                let what = format!("waiting for group ranks {}", missing.join(", "));
                return Err(refused.unwrap_or_else(|| failed(what, &"the limit has passed")));
            }
        }
    }
    refused.map_or(Ok(streams), Err)
}

/// Dials a peer until it answers or time is up.
fn dial(
    mine: &Hello,
    greeting: &[u8],
    peer: usize,
    address: SocketAddr,
    end: Instant,
) -> Result<TcpStream, CollectiveError> {
    let what = || format!("connecting to group rank {peer} at {address}");
    loop {
        let left = clock::left(end);
        if left.is_zero() {
            return Err(failed(what(), &"nobody answered before the limit"));
        }
        match TcpStream::connect_timeout(&address, left.min(Duration::from_secs(1))) {
            Ok(mut stream) => {
                let theirs = greet(&mut stream, mine, greeting, end)
                    .map_err(|unmet| unmet.error(GroupRank(peer as u32), what()))?;
                mine.check(&theirs)?;
                if theirs.rank as usize != peer {
                    let answer = format!("group rank {} answered", theirs.rank);
                    return Err(failed(what(), &answer));
                }
                return Ok(stream);
            }
            Err(error) if clock::left(end).is_zero() => return Err(failed(what(), &error)),
            Err(_) => clock::pause(PAUSE),
        }
    }
}

/// Listens until told to stop. Strangers are turned away without harm; other plans are an error.
fn accept(
    listener: &TcpListener,
    mine: &Arc<Hello>,
    greeting: &Arc<[u8]>,
    end: Instant,
    met: &mpsc::Sender<Met>,
    stopped: &mpsc::Receiver<()>,
) {
    if let Err(error) = listener.set_nonblocking(true) {
        let _late = met.send(Err(failed("listening".to_owned(), &error)));
        return;
    }
    while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
        match listener.accept() {
            Ok(_) if Arc::strong_count(mine) > mine.size as usize + STRANGERS_MAX => {}
            Ok((stream, from)) => {
                let (met, mine, greeting) = (met.clone(), Arc::clone(mine), Arc::clone(greeting));
                // On its own, so that a stranger that says nothing holds up nobody.
                thread::spawn(move || {
                    if let Some(outcome) = welcome(stream, from, &mine, &greeting, end) {
                        let _late = met.send(outcome);
                    }
                });
            }
            Err(_) => clock::pause(PAUSE),
        }
    }
}

/// Meets one that has dialled; `None` for a stranger.
fn welcome(
    mut stream: TcpStream,
    from: SocketAddr,
    mine: &Hello,
    greeting: &[u8],
    end: Instant,
) -> Option<Met> {
    let end = end.min(clock::deadline(STRANGER_MAX));
    stream.set_nonblocking(false).ok()?;
    let theirs = match greet(&mut stream, mine, greeting, end) {
        Ok(theirs) => theirs,
        Err(Unmet::OtherVersion(version)) => {
            let error = Unmet::OtherVersion(version);
            return Some(Err(error.error(GroupRank(u32::MAX), from.to_string())));
        }
        Err(_) => return None,
    };
    if let Err(error) = mine.check(&theirs) {
        return Some(Err(error));
    }
    if theirs.rank <= mine.rank || theirs.rank >= mine.size {
        let what = format!("{from} joining as group rank {}", theirs.rank);
        return Some(Err(failed(what, &"that rank does not dial this one")));
    }
    Some(Ok((theirs.rank as usize, stream)))
}

/// Why a hello did not come.
enum Unmet {
    Io(io::Error),
    NoHello(String),
    OtherVersion(u32),
}

impl Unmet {
    fn error(self, peer: GroupRank, what: String) -> CollectiveError {
        match self {
            Self::Io(error) => failed(what, &error),
            Self::NoHello(problem) => CollectiveError::Protocol { peer, problem },
            Self::OtherVersion(version) => CollectiveError::OtherPlan {
                peer,
                difference: format!(
                    "protocol version is {PROTOCOL_VERSION} here and {version} there"
                ),
            },
        }
    }
}

/// Both sides say who they are at once, then read who the other one is.
fn greet(
    stream: &mut TcpStream,
    mine: &Hello,
    greeting: &[u8],
    end: Instant,
) -> Result<Hello, Unmet> {
    let left = clock::left(end).max(Duration::from_millis(1));
    stream.set_write_timeout(Some(left)).map_err(Unmet::Io)?;
    stream.write_all(greeting).map_err(Unmet::Io)?;
    let mut prefix = [0; PREFIX_BYTES];
    read_all(stream, &mut prefix, end)?;
    let (version, len) = Hello::decode_prefix(&prefix).map_err(Unmet::NoHello)?;
    if version != PROTOCOL_VERSION {
        return Err(Unmet::OtherVersion(version));
    }
    let mut body = vec![0; len];
    read_all(stream, &mut body, end)?;
    let theirs = Hello::decode(&body).map_err(Unmet::NoHello)?;
    if theirs.rank == mine.rank && theirs.job == mine.job {
        return Err(Unmet::NoHello("it has this member's rank".to_owned()));
    }
    Ok(theirs)
}

/// Fills `into` before `end`, however slowly the bytes drip.
fn read_all(stream: &mut TcpStream, mut into: &mut [u8], end: Instant) -> Result<(), Unmet> {
    while !into.is_empty() {
        let left = clock::left(end);
        if left.is_zero() {
            return Err(Unmet::Io(ErrorKind::TimedOut.into()));
        }
        stream.set_read_timeout(Some(left)).map_err(Unmet::Io)?;
        match stream.read(into) {
            Ok(0) => return Err(Unmet::Io(ErrorKind::UnexpectedEof.into())),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Unmet::Io(error)),
        }
    }
    Ok(())
}
