//! Clusters of Kubernetes behind proxies, and those whose certificate has another name than their address.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::jobs_on_kubernetes::TestCluster;

/// The name of the cluster's certificate, which no server of names has.
const NAME: &str = "kubernetes.test";
/// The user name and the password for the proxy, and the header that has them.
const LOGIN: (&str, &str) = ("me:password-of-me", "Basic bWU6cGFzc3dvcmQtb2YtbWU=");

/// A proxy that connects all of its clients to one server: by CONNECT, or by SOCKS 5.
struct TestProxy {
    address: SocketAddr,
    /// The destinations that clients have requested, such as `kubernetes.test:443`.
    requested: Arc<Mutex<Vec<String>>>,
}

impl TestProxy {
    fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requested = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requested);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, log) = (client.unwrap(), Arc::clone(&log));
                thread::spawn(move || relay(client, server, &log));
            }
        });
        Self { address, requested }
    }

    /// Returns the requested destinations, each once.
    fn requested(&self) -> Vec<String> {
        let mut requested = self.requested.lock().unwrap().clone();
        requested.sort();
        requested.dedup();
        requested
    }
}

/// Answers a client, and connects it to the server. Connections that clients break end their threads.
fn relay(mut client: TcpStream, server: SocketAddr, log: &Mutex<Vec<String>>) -> Option<()> {
    let mut first = [0];
    client.read_exact(&mut first).ok()?;
    let destination = match first {
        [5] => socks(&mut client)?,
        _ => connect(&mut client)?,
    };
    log.lock().unwrap().push(destination);
    let mut server = TcpStream::connect(server).ok()?;
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    std::io::copy(&mut server, &mut client).ok()?;
    client.shutdown(std::net::Shutdown::Write).ok()
}

/// Reads a CONNECT request after its first byte, and returns its destination.
fn connect(client: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).ok()?;
    let destination = head.strip_prefix("ONNECT ")?.split(' ').next()?.to_owned();
    let is_allowed = head.lines().any(|line| {
        let field = line.split_once(": ");
        field.is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("proxy-authorization") && value == LOGIN.1
        })
    });
    if !is_allowed {
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        client.write_all(refusal).ok()?;
        return None;
    }
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
    Some(destination)
}

/// Reads the requests of SOCKS 5 (RFC 1928) after the version, and returns the destination.
fn socks(client: &mut TcpStream) -> Option<String> {
    let methods = read(client, 1)?[0];
    read(client, methods)?;
    client.write_all(&[5, 0]).ok()?;
    let host = match read(client, 4)?[3] {
        1 => {
            let numbers = read(client, 4)?;
            let numbers: Vec<String> = numbers.iter().map(u8::to_string).collect();
            numbers.join(".")
        }
        3 => {
            let length = read(client, 1)?[0];
            String::from_utf8(read(client, length)?).ok()?
        }
        _ => return None,
    };
    let port = read(client, 2)?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).ok()?;
    Some(format!("{host}:{}", u16::from_be_bytes([port[0], port[1]])))
}

fn read(client: &mut TcpStream, count: u8) -> Option<Vec<u8>> {
    let mut bytes = vec![0; count.into()];
    client.read_exact(&mut bytes).ok().map(|()| bytes)
}

/// Returns the address of the server of a cluster.
fn server(cluster: &TestCluster) -> SocketAddr {
    let config = config(cluster);
    let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap();
    server.strip_prefix("https://").unwrap().parse().unwrap()
}

fn config(cluster: &TestCluster) -> Value {
    serde_json::from_slice(&std::fs::read(cluster.path("cluster/config")).unwrap()).unwrap()
}

/// Changes the cluster in the kubeconfig.
fn set(cluster: &TestCluster, values: Value) {
    let mut config = config(cluster);
    config["clusters"][0]["cluster"] = json!({ "certificate-authority": "ca.pem" });
    let fields = config["clusters"][0]["cluster"].as_object_mut().unwrap();
    fields.extend(values.as_object().unwrap().clone());
    std::fs::write(cluster.path("cluster/config"), config.to_string()).unwrap();
}

const SHORT: [&str; 6] = ["-n", "1", "--name", "short", "--set", "train.epochs=1"];

#[test]
fn a_cluster_is_reached_through_the_proxy_of_its_kubeconfig_which_looks_its_name_up() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let proxy = TestProxy::new(server(&cluster));
    let address = format!("https://{NAME}");
    let through = |login: &str| json!({ "server": address, "proxy-url": format!("http://{login}@{}", proxy.address) });
    set(&cluster, through("me:other-password"));
    let refused = cluster.submit("", &SHORT);
    let shown = format!("{address} through the proxy {}: ", proxy.address);
    let refused = refused.expect(3, &[&shown, "authorization required"]);
    assert!(!refused.stderr.contains("other-password"), "{refused:#?}");
    set(&cluster, through(LOGIN.0));
    cluster.submit("", &SHORT).expect(0, &[]);
    // Output that is followed, and a command in a pod over a web socket.
    let followed = cluster.ronde(&["logs", "-f", "short"]).expect(0, &[]);
    assert!(followed.stdout.contains("1 worker"), "{followed:#?}");
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    let fetched = cluster.ronde(&["fetch", "short", "--to", "copy"]);
    fetched.expect(0, &[]);
    assert_eq!(proxy.requested(), [format!("{NAME}:443")]);
    // SOCKS 5.
    set(
        &cluster,
        json!({ "server": address, "proxy-url": format!("socks5://{}", proxy.address) }),
    );
    cluster.ronde(&["jobs", "--remove", "short"]).expect(0, &[]);
    assert_eq!(proxy.requested(), [format!("{NAME}:443")]);
    set(
        &cluster,
        json!({ "server": address, "proxy-url": "ftp://me:secret@proxy" }),
    );
    let refused = cluster.submit("", &SHORT);
    let refused = refused.expect(
        2,
        &["invalid proxy-url: expected an address with http, https"],
    );
    assert!(!refused.stderr.contains("secret"), "{refused:#?}");
}

#[test]
fn the_certificate_of_a_cluster_has_the_name_that_the_kubeconfig_specifies() {
    let Some(cluster) = TestCluster::new() else {
        return;
    };
    let server = server(&cluster);
    let address = format!("https://localhost:{}", server.port());
    set(&cluster, json!({ "server": address }));
    cluster.submit("", &SHORT).expect(
        3,
        &[&address, "certificate not valid for name \"localhost\""],
    );
    set(
        &cluster,
        json!({ "server": address, "tls-server-name": NAME }),
    );
    cluster.submit("", &SHORT).expect(0, &[]);
    cluster.ronde(&["wait", "short"]).expect(0, &["finished"]);
    let seen = |name: &str| std::fs::read_to_string(cluster.path(name)).unwrap();
    assert_eq!(seen("cluster/server-name"), NAME);
    assert_eq!(format!("https://{}", seen("cluster/host")), address);
    // The proxy gets the server's address, not the name of the certificate.
    let proxy = TestProxy::new(server);
    let through = |scheme: &str| {
        json!({
            "server": format!("https://127.0.0.2:{}", server.port()), "tls-server-name": NAME,
            "proxy-url": format!("{scheme}://{}", proxy.address),
        })
    };
    set(&cluster, through("socks5"));
    cluster.ronde(&["logs", "short"]).expect(0, &[]);
    assert_eq!(proxy.requested(), [format!("127.0.0.2:{}", server.port())]);
    set(&cluster, through("http"));
    cluster.ronde(&["logs", "short"]).expect(
        2,
        &["expected a socks5 address, because there is a tls-server-name"],
    );
    set(
        &cluster,
        json!({ "server": address, "tls-server-name": "10.0.0.1" }),
    );
    cluster.ronde(&["logs", "short"]).expect(
        2,
        &["invalid tls-server-name `10.0.0.1`: expected a host name"],
    );
}
