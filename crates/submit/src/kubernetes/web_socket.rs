//! [`WebSocket`]: the messages of a web socket (RFC 6455) that a client receives; it sends control frames only.
//!
//! The client only receives. The crate `tungstenite` brings another handshake and another random source.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Silence after which the client looks whether the server is still there.
const PING_AFTER: Duration = Duration::from_secs(15);
/// The number of such looks without an answer after which the connection counts as lost.
const PINGS_MAX: u32 = 4;
/// The largest message in bytes.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

const CONTINUATION: u8 = 0;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The client's end of a web socket.
pub(super) struct WebSocket<T> {
    stream: T,
    received: Vec<u8>,
    /// The parts of a message whose last part has not arrived.
    parts: Vec<u8>,
}

/// A frame of a server.
#[derive(Debug, PartialEq, Eq)]
struct SocketFrame {
    is_last: bool,
    code: u8,
    bytes: Vec<u8>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocket<T> {
    /// Takes a stream after the handshake.
    pub(super) fn new(stream: T) -> Self {
        Self {
            stream,
            received: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Returns the next message; `None` at the end. The error is a sentence.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            while let Some((frame, length)) = parse(&self.received)? {
                self.received.drain(..length);
                match frame.code {
                    CLOSE => {
                        // The server may have closed the connection already.
                        let _ = self.send(CLOSE, &frame.bytes).await;
                        return Ok(None);
                    }
                    PING => self.send(PONG, &frame.bytes).await?,
                    PONG => {}
                    _ => {
                        if frame.code != CONTINUATION {
                            self.parts.clear();
                        }
                        self.parts.extend_from_slice(&frame.bytes);
                        if self.parts.len() > MESSAGE_BYTES_MAX {
                            return Err(format!(
                                "a message is larger than {MESSAGE_BYTES_MAX} bytes"
                            ));
                        }
                        if frame.is_last {
                            return Ok(Some(std::mem::take(&mut self.parts)));
                        }
                    }
                }
            }
            if !self.receive().await? {
                return Ok(None);
            }
        }
    }

    /// Reads bytes; returns false at the end of the stream.
    async fn receive(&mut self) -> Result<bool, String> {
        let mut bytes = vec![0; READ_BYTES];
        for _ in 0..PINGS_MAX {
            match tokio::time::timeout(PING_AFTER, self.stream.read(&mut bytes)).await {
                Ok(Ok(count)) => {
                    self.received.extend_from_slice(&bytes[..count]);
                    return Ok(count > 0);
                }
                Ok(Err(error)) => {
                    return Err(format!("the connection to the pod is lost: {error}"));
                }
                Err(_) => self.send(PING, &[]).await?,
            }
        }
        Err("the connection to the pod is silent".to_owned())
    }

    async fn send(&mut self, code: u8, bytes: &[u8]) -> Result<(), String> {
        let mut mask = [0; 4];
        aws_lc_rs::rand::fill(&mut mask)
            .map_err(|_| "the system has no random numbers".to_owned())?;
        let frame = control_frame(code, mask, bytes);
        let sent = self.stream.write_all(&frame).await;
        sent.map_err(|error| format!("the connection to the pod is lost: {error}"))
    }
}

/// Returns a control frame of a client. Control frames have at most 125 bytes.
fn control_frame(code: u8, mask: [u8; 4], bytes: &[u8]) -> Vec<u8> {
    let bytes = &bytes[..bytes.len().min(125)];
    let length = u8::try_from(bytes.len()).unwrap_or(125);
    let mut frame = vec![0x80 | code, 0x80 | length];
    frame.extend_from_slice(&mask);
    frame.extend(
        bytes
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    frame
}

/// Returns the first frame of a server in received bytes with its length; `None` if it is not complete.
fn parse(received: &[u8]) -> Result<Option<(SocketFrame, usize)>, String> {
    let &[first, second, ref rest @ ..] = received else {
        return Ok(None);
    };
    if second & 0x80 != 0 || first & 0x70 != 0 {
        return Err("the server does not speak the protocol of web sockets".to_owned());
    }
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let size = match second {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let Some(field) = rest.get(..size) else {
        return Ok(None);
    };
    let length = match size {
        0 => u64::from(second),
        _ => number(field),
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        return Err(format!(
            "a message is larger than {MESSAGE_BYTES_MAX} bytes"
        ));
    }
    let begin = 2 + size;
    Ok(received.get(begin..begin + length).map(|bytes| {
        let frame = SocketFrame {
            is_last: first & 0x80 != 0,
            code: first & 0x0f,
            bytes: bytes.to_vec(),
        };
        (frame, begin + length)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_lengths_are_read_and_others_are_refused() {
        // The examples of RFC 6455, section 5.7.
        let hello = [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
        let (frame, length) = parse(&hello).unwrap().unwrap();
        assert_eq!(
            (frame.is_last, frame.code, &frame.bytes[..], length),
            (true, 1, &b"Hello"[..], 7)
        );
        for cut in 0..hello.len() {
            assert_eq!(parse(&hello[..cut]).unwrap(), None);
        }
        for (head, length) in [
            (vec![0x82, 126, 1, 0], 256),
            (vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], 65_536),
        ] {
            let mut bytes = head;
            let begin = bytes.len();
            bytes.extend(vec![7; length + 3]);
            let (frame, taken) = parse(&bytes).unwrap().unwrap();
            assert_eq!((frame.bytes.len(), taken), (length, begin + length));
        }
        assert!(parse(&[0x82, 127, 255, 0, 0, 0, 0, 1, 0, 0]).is_err());
        assert!(
            parse(&[0x81, 0x85, 0, 0]).is_err(),
            "a server does not mask"
        );
        assert_eq!(
            control_frame(PING, [0x37, 0xfa, 0x21, 0x3d], b"Hello"),
            [
                0x89, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58
            ]
        );
    }

    #[test]
    fn messages_in_parts_are_joined_and_pings_are_answered() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (client, mut server) = tokio::io::duplex(1024);
            let mut socket = WebSocket::new(client);
            let frames = [0x02, 2, 1, b'a', 0x89, 1, b'p', 0x80, 1, b'b', 0x88, 0];
            server.write_all(&frames).await.unwrap();
            assert_eq!(socket.next().await.unwrap(), Some(vec![1, b'a', b'b']));
            assert_eq!(socket.next().await.unwrap(), None);
            let mut answer = [0; 7];
            server.read_exact(&mut answer).await.unwrap();
            assert_eq!(
                (answer[0], answer[1], answer[6] ^ answer[2]),
                (0x8a, 0x81, b'p')
            );
        });
    }
}
