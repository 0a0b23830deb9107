//! Nodes with a few functions, on free ports of this host.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use ronde_rpc::{
    CallTarget, CallValues, FunctionError, FunctionRegistry, RemoteFunction, RpcConfig, RpcLimits,
    RpcNode, RpcPeer, RpcSecurity, RpcToken,
};

pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const TOKEN: &str = "a secret for tests";

/// Returns its argument and values.
pub(crate) const ECHO: RemoteFunction<String, String> = RemoteFunction::new("test.echo", 1);
/// Sleeps for milliseconds, then returns them.
pub(crate) const SLEEP: RemoteFunction<u64, u64> = RemoteFunction::new("test.sleep", 1);
/// Fails or panics.
pub(crate) const FAIL: RemoteFunction<bool, ()> = RemoteFunction::new("test.fail", 1);
/// Adds one to a counter of the callee.
pub(crate) const COUNT: RemoteFunction<(), u64> = RemoteFunction::new("test.count", 1);

pub(crate) fn functions() -> FunctionRegistry {
    let mut functions = FunctionRegistry::new();
    functions.register(&ECHO, |_, text, values| Ok((text, values)));
    functions.register(&SLEEP, |_, milliseconds, _| {
        sleep(Duration::from_millis(milliseconds));
        Ok((milliseconds, CallValues::none()))
    });
    functions.register(&FAIL, |_, panics, _| {
        assert!(!panics, "a panic of a test");
        Err(FunctionError::new("a failure of a test"))
    });
    let counter = std::sync::atomic::AtomicU64::new(0);
    functions.register(&COUNT, move |_, (), _| {
        let before = counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Ok((before + 1, CallValues::none()))
    });
    functions
}

#[expect(clippy::disallowed_methods, reason = "a function that takes long")]
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

pub(crate) fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(crate) fn peer(name: &str, address: SocketAddr) -> RpcPeer {
    RpcPeer {
        name: name.to_owned(),
        role: name.trim_end_matches(char::is_numeric).to_owned(),
        address,
        member: None,
    }
}

pub(crate) fn config(name: &str) -> RpcConfig {
    RpcConfig::new("job", name, RpcSecurity::Token(RpcToken::new(TOKEN)))
}

/// Opens a node for each name; `limits` are those of all.
pub(crate) fn nodes(names: &[&str], limits: &RpcLimits) -> Vec<RpcNode> {
    let sockets: Vec<_> = names.iter().map(|_| listen()).collect();
    let peers = |mine: &str| {
        let all = names.iter().zip(&sockets);
        let others = all.filter(|(name, _)| **name != mine);
        others.map(|(name, (_, at))| peer(name, *at)).collect()
    };
    let lists: Vec<Vec<RpcPeer>> = names.iter().map(|name| peers(name)).collect();
    let each = names.iter().zip(sockets).zip(lists);
    each.map(|((name, (listener, _)), peers)| {
        let mut config = config(name);
        config.limits = limits.clone();
        RpcNode::open(config, listener, peers, functions()).unwrap()
    })
    .collect()
}

pub(crate) fn echo(node: &RpcNode, to: &str) -> Result<String, ronde_rpc::RpcError> {
    let text = "text".to_owned();
    let none = CallValues::none();
    Ok(node
        .call(CallTarget::Worker(to), &ECHO, &text, none, LIMIT)?
        .0)
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("{what} did not happen");
}
