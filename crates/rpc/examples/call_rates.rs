//! Measures remote calls between two processes of this host: `call_rates ROUNDS` prints one JSON line per round.
//!
//! `benchmarks/rpc.py` compares them with `torch.distributed.rpc`.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ronde_rpc::{
    CallTarget, CallValues, FunctionRegistry, RemoteFunction, RpcConfig, RpcNode, RpcPeer,
    RpcSecurity, RpcToken,
};

const EMPTY: RemoteFunction<(), ()> = RemoteFunction::new("bench.empty", 1);
const EMPTY_ON_THREAD: RemoteFunction<(), ()> = RemoteFunction::new("bench.empty_on_thread", 1);
const TAKE: RemoteFunction<(), ()> = RemoteFunction::new("bench.take", 1);
const ECHO: RemoteFunction<(), ()> = RemoteFunction::new("bench.echo", 1);

const CALLEE: CallTarget<'_> = CallTarget::Worker("callee");
const LIMIT: Duration = Duration::from_secs(30);
/// One MiB.
const VALUES: usize = 1 << 18;
const EMPTY_CALLS: usize = 2_000;
const LARGE_CALLS: usize = 200;
const CONCURRENT_CALLS: usize = 5_000;

fn node(
    name: &str,
    listener: TcpListener,
    other: (&str, SocketAddr),
    functions: FunctionRegistry,
) -> Result<RpcNode, Box<dyn Error>> {
    let security = RpcSecurity::Token(RpcToken::new("a benchmark on one host"));
    let peer = RpcPeer {
        name: other.0.to_owned(),
        role: other.0.to_owned(),
        address: other.1,
        member: None,
    };
    let config = RpcConfig::new("benchmark", name, security);
    Ok(RpcNode::open(config, listener, vec![peer], functions)?)
}

/// The process that is called: prints its address and serves until its input ends.
fn serve(caller: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut functions = FunctionRegistry::new();
    functions.register_immediate(&EMPTY, |_, (), _| Ok(((), CallValues::none())));
    functions.register(&EMPTY_ON_THREAD, |_, (), _| Ok(((), CallValues::none())));
    functions.register(&TAKE, |_, (), _| Ok(((), CallValues::none())));
    functions.register(&ECHO, |_, (), values| Ok(((), values)));
    let _node = node("callee", listener, ("caller", caller), functions)?;
    println!("{address}");
    std::io::stdout().flush()?;
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

struct CalleeProcess(Child);

impl Drop for CalleeProcess {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_else(|| "3".to_owned());
    if let Ok(caller) = first.parse::<SocketAddr>() {
        return serve(caller);
    }
    let rounds: usize = first.parse()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let child = Command::new(std::env::current_exe()?)
        .arg(listener.local_addr()?.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut callee = CalleeProcess(child);
    let output = callee.0.stdout.take().ok_or("no output")?;
    let mut address = String::new();
    BufReader::new(output).read_line(&mut address)?;
    let other = ("callee", address.trim().parse()?);
    let node = node("caller", listener, other, FunctionRegistry::new())?;
    measure(&node)?;
    for _ in 0..rounds {
        println!("{}", measure(&node)?);
    }
    Ok(())
}

/// Returns the median and the 99th percentile of the time of an empty call, in microseconds.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn round_trip(
    node: &RpcNode,
    function: &RemoteFunction<(), ()>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut times = Vec::with_capacity(EMPTY_CALLS);
    for _ in 0..EMPTY_CALLS {
        let start = Instant::now();
        node.call(CALLEE, function, &(), CallValues::none(), LIMIT)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[EMPTY_CALLS / 2], times[EMPTY_CALLS * 99 / 100]))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn measure(node: &RpcNode) -> Result<String, Box<dyn Error>> {
    let (on_thread, _) = round_trip(node, &EMPTY_ON_THREAD)?;
    let (median, p99) = round_trip(node, &EMPTY)?;
    let values = std::sync::Arc::new(vec![0.5_f32; VALUES]);
    let mut rates = Vec::new();
    for function in [TAKE, ECHO] {
        let start = Instant::now();
        for _ in 0..LARGE_CALLS {
            node.call(CALLEE, &function, &(), values.clone(), LIMIT)?;
        }
        rates.push(LARGE_CALLS as f64 / start.elapsed().as_secs_f64());
        let start = Instant::now();
        for _ in 0..LARGE_CALLS / 8 {
            let begin = |_| node.start(CALLEE, &function, &(), values.clone(), LIMIT);
            let calls = (0..8).map(begin).collect::<Result<Vec<_>, _>>()?;
            for call in calls {
                call.wait()?;
            }
        }
        rates.push(LARGE_CALLS as f64 / start.elapsed().as_secs_f64());
    }
    let start = Instant::now();
    let begin = |_| node.start(CALLEE, &EMPTY, &(), CallValues::none(), LIMIT);
    let calls = (0..CONCURRENT_CALLS)
        .map(begin)
        .collect::<Result<Vec<_>, _>>()?;
    for call in calls {
        call.wait()?;
    }
    let concurrent = CONCURRENT_CALLS as f64 / start.elapsed().as_secs_f64();
    Ok(format!(
        r#"{{"empty_us": {median:.1}, "empty_p99_us": {p99:.1}, "empty_on_thread_us": {on_thread:.1}, "take_mib_s": {:.0}, "take_8_mib_s": {:.0}, "echo_mib_s": {:.0}, "echo_8_mib_s": {:.0}, "concurrent_calls_s": {concurrent:.0}}}"#,
        rates[0], rates[1], rates[2], rates[3]
    ))
}
