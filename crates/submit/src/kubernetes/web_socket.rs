//! [`WebSocket`]: the messages of a web socket that a client receives. The crate `tungstenite` has the protocol; the limits of
//! time and size are here.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{Error, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Message};

/// Silence after which the client looks whether the server is still there.
const PING_AFTER: Duration = Duration::from_secs(15);
/// The number of such looks without an answer after which the connection counts as lost.
const PINGS_MAX: u32 = 4;
/// The largest message in bytes.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Why the messages of a web socket end early.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebSocketError {
    #[error("the connection to the pod is silent")]
    Silent,
    #[error("the connection to the pod is lost: {0}")]
    Lost(std::io::Error),
    #[error("a message is larger than {MESSAGE_BYTES_MAX} bytes")]
    Large,
    #[error("the server breaks the protocol of web sockets: {0}")]
    Protocol(Error),
}

/// The client's end of a web socket.
pub(super) struct WebSocket<T>(WebSocketStream<T>);

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocket<T> {
    /// Takes a stream after the handshake.
    pub(super) async fn new(stream: T) -> Self {
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        Self(WebSocketStream::from_raw_socket(stream, Role::Client, Some(limits)).await)
    }

    /// Returns the next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, WebSocketError> {
        loop {
            match self.receive().await? {
                Some(Message::Close(_)) => {
                    // The server may have closed the connection already.
                    let _ = timeout(PING_AFTER, self.0.flush()).await;
                    return Ok(None);
                }
                // A ping is answered before the next message is read.
                Some(Message::Ping(_) | Message::Pong(_)) => {}
                Some(message) => return Ok(Some(message.into_data())),
                None => return Ok(None),
            }
        }
    }

    /// Reads a message or control frame; `None` at the end of the stream.
    async fn receive(&mut self) -> Result<Option<Message>, WebSocketError> {
        for _ in 0..PINGS_MAX {
            match timeout(PING_AFTER, self.0.next()).await {
                Ok(received) => return received.transpose().or_else(end),
                Err(_) => {
                    let sent = timeout(PING_AFTER, self.0.send(Message::Ping(Bytes::new()))).await;
                    if let Ok(Err(error)) = sent {
                        return end(error);
                    }
                }
            }
        }
        Err(WebSocketError::Silent)
    }
}

/// Returns the end of a stream, or the reason why it ended early.
fn end(error: Error) -> Result<Option<Message>, WebSocketError> {
    match error {
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Ok(None),
        Error::Io(error) => Err(WebSocketError::Lost(error)),
        Error::Capacity(_) => Err(WebSocketError::Large),
        error => Err(WebSocketError::Protocol(error)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Runs a future on a runtime of this thread.
    fn block_on(future: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(future);
    }

    #[test]
    fn messages_in_parts_are_joined_and_pings_are_answered() {
        block_on(async {
            let (client, mut server) = tokio::io::duplex(1024);
            let mut socket = WebSocket::new(client).await;
            let frames = [0x02, 2, 1, b'a', 0x89, 1, b'p', 0x80, 1, b'b', 0x88, 0];
            server.write_all(&frames).await.unwrap();
            assert_eq!(
                socket.next().await.unwrap().as_deref(),
                Some(&b"\x01ab"[..])
            );
            assert_eq!(socket.next().await.unwrap(), None);
            let mut answer = [0; 7 + 6];
            server.read_exact(&mut answer).await.unwrap();
            assert_eq!(
                (answer[0], answer[1], answer[6] ^ answer[2]),
                (0x8a, 0x81, b'p')
            );
            assert_eq!(answer[7], 0x88, "the end is answered");
        });
    }

    #[test]
    fn an_end_without_a_close_is_an_end_and_large_or_masked_messages_are_refused() {
        for (frame, expected) in [
            (
                &[0x82, 127, 0, 0, 0, 0, 0x10, 0, 0, 0][..],
                Err("larger than"),
            ),
            (&[0x82, 0x81, 0, 0, 0, 0, 1], Err("breaks the protocol")),
            (&[], Ok(None)),
        ] {
            block_on(async {
                let (client, mut server) = tokio::io::duplex(1024);
                let mut socket = WebSocket::new(client).await;
                server.write_all(frame).await.unwrap();
                drop(server);
                match (socket.next().await, expected) {
                    (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                    (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                    (found, _) => panic!("{found:?}"),
                }
            });
        }
    }
}
