//! [`TlsSession`]: TLS 1.3 without a socket.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;

use ronde_identity::rustls::pki_types::{CertificateDer, ServerName};
use ronde_identity::rustls::server::{AcceptedAlert, Acceptor, ClientHello};
use ronde_identity::rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection,
};

use crate::error::{TlsRefusal, retry_interrupted};

/// Plain bytes that a session takes before its encrypted ones are sent.
const UNSENT_BYTES: usize = 128 << 10;

/// Chooses the configuration of a server from the first message of its client.
pub type ChooseConfig = Arc<dyn Fn(&ClientHello<'_>) -> Arc<ServerConfig> + Send + Sync>;

/// One end of a TLS connection: encrypted bytes in and out on one side, plain bytes on the other. It does no I/O.
pub struct TlsSession(Stage);

enum Stage {
    /// The first message of the client, which decides on the configuration, is not complete.
    Choosing {
        acceptor: Acceptor,
        choose: ChooseConfig,
        /// The reason why the message was refused.
        alert: Option<AcceptedAlert>,
    },
    Connected(Connection),
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession")
            .field("is_handshaking", &self.is_handshaking())
            .finish_non_exhaustive()
    }
}

impl TlsSession {
    /// Creates the end that dialled a peer of this name.
    ///
    /// # Errors
    /// The configuration and the name do not fit.
    pub fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, TlsRefusal> {
        let connection = ClientConnection::new(config, name).map_err(TlsRefusal)?;
        Ok(Self(connected(connection.into())))
    }

    /// Creates the end that was dialled.
    ///
    /// # Errors
    /// The configuration is not valid.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, TlsRefusal> {
        let connection = ServerConnection::new(config).map_err(TlsRefusal)?;
        Ok(Self(connected(connection.into())))
    }

    /// Creates the end that was dialled, with a configuration that depends on the first message of the client.
    #[must_use]
    pub fn server_by(choose: ChooseConfig) -> Self {
        Self(Stage::Choosing {
            acceptor: Acceptor::default(),
            choose,
            alert: None,
        })
    }

    fn connection(&self) -> Option<&Connection> {
        match &self.0 {
            Stage::Choosing { .. } => None,
            Stage::Connected(connection) => Some(connection),
        }
    }

    /// Returns whether the ends have not authenticated each other yet.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection()
            .is_none_or(|connection| connection.is_handshaking())
    }

    /// Returns the peer's certificate, after the handshake.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.connection()?.peer_certificates()?.first()
    }

    /// Returns the protocol on which both ends have agreed, after the handshake.
    #[must_use]
    pub fn protocol(&self) -> Option<&[u8]> {
        self.connection()?.alpn_protocol()
    }

    /// Takes encrypted bytes from the start of `bytes`, and returns how many. No bytes: the stream has ended.
    ///
    /// # Errors
    /// A [`TlsRefusal`]; its reason waits to be sent to the peer.
    pub fn receive(&mut self, mut bytes: &[u8]) -> io::Result<usize> {
        let count = match &mut self.0 {
            Stage::Choosing { acceptor, .. } => {
                let count = acceptor.read_tls(&mut bytes)?;
                self.choose()?;
                count
            }
            Stage::Connected(connection) => connection.read_tls(&mut bytes)?,
        };
        if let Stage::Connected(connection) = &mut self.0 {
            let processed = connection.process_new_packets();
            processed.map_err(TlsRefusal)?;
        }
        Ok(count)
    }

    /// Chooses the configuration if the first message of the client is complete.
    fn choose(&mut self) -> Result<(), TlsRefusal> {
        let Stage::Choosing {
            acceptor,
            choose,
            alert,
        } = &mut self.0
        else {
            return Ok(());
        };
        let accepted = match acceptor.accept() {
            Ok(Some(accepted)) => {
                let config = choose(&accepted.client_hello());
                accepted.into_connection(config)
            }
            Ok(None) => return Ok(()),
            Err(refused) => Err(refused),
        };
        match accepted {
            Ok(connection) => {
                self.0 = connected(connection.into());
                Ok(())
            }
            Err((error, reason)) => {
                *alert = Some(reason);
                Err(TlsRefusal(error))
            }
        }
    }

    /// Reads plain bytes; 0 if the peer has ended the session in good order.
    ///
    /// # Errors
    /// `WouldBlock` if encrypted bytes must be received first, `UnexpectedEof` if the stream ended without the end of the session.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Stage::Choosing { .. } => Err(ErrorKind::WouldBlock.into()),
            Stage::Connected(connection) => connection.reader().read(into),
        }
    }

    /// Takes plain bytes, as many as its memory holds; returns how many.
    ///
    /// # Errors
    /// The session has ended.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.0 {
            Stage::Choosing { .. } => Ok(0),
            Stage::Connected(connection) => connection.writer().write_vectored(pieces),
        }
    }

    /// Returns whether encrypted bytes wait to be sent.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        match &self.0 {
            Stage::Choosing { alert, .. } => alert.is_some(),
            Stage::Connected(connection) => connection.wants_write(),
        }
    }

    /// Sends encrypted bytes until none are left.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn send(&mut self, send: &mut dyn Write) -> io::Result<()> {
        match &mut self.0 {
            Stage::Choosing { alert, .. } => match alert.take() {
                Some(mut alert) => alert.write_all(send),
                None => Ok(()),
            },
            Stage::Connected(connection) => {
                while connection.wants_write() {
                    if retry_interrupted(|| connection.write_tls(send))? == 0 {
                        return Err(ErrorKind::WriteZero.into());
                    }
                }
                Ok(())
            }
        }
    }

    /// Ends the session in good order, after the bytes that wait to be sent.
    pub fn close(&mut self) {
        if let Stage::Connected(connection) = &mut self.0 {
            connection.send_close_notify();
        }
    }
}

fn connected(mut connection: Connection) -> Stage {
    connection.set_buffer_limit(Some(UNSENT_BYTES));
    Stage::Connected(connection)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use ronde_core::Rank;
    use ronde_identity::{Authority, Identity, Member, Validity};

    use super::*;

    /// Two members of a job.
    pub(crate) fn members() -> [Identity; 2] {
        let validity = Validity::from_now(ronde_clock::date(), Duration::from_secs(3600));
        let authority = Authority::new("job", validity).unwrap();
        [0, 1].map(|rank| {
            let member = Member::Rank(Rank(rank));
            authority.issue(&member, validity).unwrap()
        })
    }

    fn ends() -> [TlsSession; 2] {
        let [dials, accepts] = members();
        let name = dials.name_of(&Member::Rank(Rank(1))).unwrap();
        let client = TlsSession::client(dials.client_config(b"test").unwrap(), name).unwrap();
        let server = TlsSession::server(accepts.server_config(b"test").unwrap()).unwrap();
        [client, server]
    }

    #[test]
    fn a_server_chooses_its_configuration_from_the_first_message() {
        let [dials, accepts] = members();
        for protocol in [&b"test"[..], b"other"] {
            let configs = [&b"test"[..], b"other"].map(|name| accepts.server_config(name).unwrap());
            let choose: ChooseConfig = Arc::new(move |hello| {
                let is_other = hello
                    .alpn()
                    .is_some_and(|mut all| all.any(|p| p == b"other"));
                Arc::clone(&configs[usize::from(is_other)])
            });
            let name = dials.name_of(&Member::Rank(Rank(1))).unwrap();
            let client = TlsSession::client(dials.client_config(protocol).unwrap(), name);
            let (mut client, mut server) = (client.unwrap(), TlsSession::server_by(choose));
            while client.is_handshaking() || server.is_handshaking() {
                pass(&mut client, &mut server, 7).unwrap();
                pass(&mut server, &mut client, 7).unwrap();
            }
            assert_eq!(server.protocol(), Some(protocol));
        }
        let mut server = TlsSession::server_by(Arc::new(|_| unreachable!("no hello")));
        let error = server.receive(b"GET / HTTP/1.1\r\n").unwrap_err();
        assert!(TlsRefusal::of(&error).is_some());
        assert!(server.has_unsent(), "an alert");
    }

    /// Passes the unsent bytes of one end to the other, `piece` bytes at a time.
    fn pass(from: &mut TlsSession, to: &mut TlsSession, piece: usize) -> io::Result<()> {
        let mut bytes = Vec::new();
        from.send(&mut bytes)?;
        for piece in bytes.chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                let count = to.receive(rest)?;
                rest = &rest[count..];
            }
        }
        Ok(())
    }

    fn read(session: &mut TlsSession) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut piece = [0; 1000];
        while let Ok(count @ 1..) = session.read(&mut piece) {
            bytes.extend_from_slice(&piece[..count]);
        }
        bytes
    }

    #[test]
    fn bytes_in_pieces_of_any_size_arrive() {
        for piece in [1, 3, 1000, usize::MAX] {
            let [mut client, mut server] = ends();
            while client.is_handshaking() || server.is_handshaking() {
                pass(&mut client, &mut server, piece).unwrap();
                pass(&mut server, &mut client, piece).unwrap();
            }
            assert_eq!(client.protocol(), Some(&b"test"[..]));
            assert!(client.certificate().is_some() && server.certificate().is_some());
            let sent: Vec<u8> = (0..100_000_u32).map(|value| value as u8).collect();
            let mut received = Vec::new();
            let mut rest = &sent[..];
            while !rest.is_empty() {
                let count = client.write(&[IoSlice::new(rest)]).unwrap();
                rest = &rest[count..];
                let mut bytes = Vec::new();
                client.send(&mut bytes).unwrap();
                for piece in bytes.chunks(piece) {
                    let mut rest = piece;
                    while !rest.is_empty() {
                        let count = server.receive(rest).unwrap();
                        rest = &rest[count..];
                        received.extend(read(&mut server));
                    }
                }
            }
            assert!(received == sent);
            assert_eq!(
                server.read(&mut [0]).unwrap_err().kind(),
                ErrorKind::WouldBlock
            );
        }
    }

    #[test]
    fn an_end_in_good_order_differs_from_a_lost_stream() {
        for is_closed in [true, false] {
            let [mut client, mut server] = ends();
            while client.is_handshaking() || server.is_handshaking() {
                pass(&mut client, &mut server, 100).unwrap();
                pass(&mut server, &mut client, 100).unwrap();
            }
            if is_closed {
                client.close();
                pass(&mut client, &mut server, 100).unwrap();
            }
            server.receive(&[]).unwrap();
            let end = server.read(&mut [0]).map_err(|error| error.kind());
            let expected = match is_closed {
                true => Ok(0),
                false => Err(ErrorKind::UnexpectedEof),
            };
            assert_eq!(end, expected);
        }
    }

    #[test]
    fn a_member_of_another_job_is_refused_and_learns_why() {
        let [mut client, _] = ends();
        let [_, mut server] = ends();
        let refused = loop {
            let passed = pass(&mut client, &mut server, 100);
            match passed.and_then(|()| pass(&mut server, &mut client, 100)) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        assert!(TlsRefusal::of(&refused).is_some());
        assert!(client.has_unsent(), "an alert");
        let alert = pass(&mut client, &mut server, 100).unwrap_err();
        assert!(TlsRefusal::of(&alert).is_some(), "{alert}");
    }

    #[test]
    fn changed_bytes_are_refused() {
        let [mut client, mut server] = ends();
        while client.is_handshaking() || server.is_handshaking() {
            pass(&mut client, &mut server, 100).unwrap();
            pass(&mut server, &mut client, 100).unwrap();
        }
        client.write(&[IoSlice::new(b"twelve bytes")]).unwrap();
        let mut bytes = Vec::new();
        client.send(&mut bytes).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let error = server.receive(&bytes).unwrap_err();
        assert!(TlsRefusal::of(&error).is_some(), "{error}");
    }
}
