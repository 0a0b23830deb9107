//! Requests over a real connection.

use super::*;

fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request).unwrap();
    let mut response = String::new();
    // A refused request may be answered by a reset connection.
    let _ = stream.read_to_string(&mut response);
    response
}

#[test]
fn metrics_are_served_and_other_requests_are_refused() {
    let endpoint =
        PrometheusEndpoint::listen("127.0.0.1:0".parse().unwrap(), RunMetrics::default()).unwrap();
    let address = endpoint.address();
    for (request, answer) in [
        (
            "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
        ),
        ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        ("\r\n\r\n", "HTTP/1.1 405 "),
    ] {
        let response = exchange(address, request.as_bytes());
        assert!(response.starts_with(answer), "{request:?}: {response}");
    }
    assert!(exchange(address, b"GET /metrics HTTP/1.1\r\n\r\n").contains("ronde_run_steps"));
    assert!(!exchange(address, b"HEAD /metrics HTTP/1.1\r\n\r\n").contains("ronde_run_steps"));
    let large = vec![b'x'; 4 * REQUEST_BYTES_MAX];
    assert!(!exchange(address, &large).contains("200 OK"));
    drop(endpoint);
    assert!(
        TcpStream::connect(address).is_err(),
        "the port is free again"
    );
}

#[test]
fn an_address_in_use_is_an_error() {
    let first =
        PrometheusEndpoint::listen("127.0.0.1:0".parse().unwrap(), RunMetrics::default()).unwrap();
    let second = PrometheusEndpoint::listen(first.address(), RunMetrics::default());
    assert!(second.is_err());
}
