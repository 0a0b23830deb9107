//! References to objects of other workers: counts, leases, and holders that are killed.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ronde_rpc::{
    CallTarget, CallValues, FunctionRegistry, ReferenceTicket, RemoteFunction, RemoteRef, RpcError,
    RpcLimits, RpcNode,
};

use crate::support::{LIMIT, config, listen, peer, sleep, wait_until};

/// Creates a table at the callee.
const CREATE: RemoteFunction<(), ReferenceTicket> = RemoteFunction::new("test.create", 1);
/// Adds values to a table and returns their number.
const ADD: RemoteFunction<ReferenceTicket, usize> = RemoteFunction::new("test.add", 1);
/// Passes a table on.
const PASS: RemoteFunction<ReferenceTicket, usize> = RemoteFunction::new("test.pass", 1);

const OWNER: CallTarget<'_> = CallTarget::Worker("owner");

struct Table {
    values: std::sync::Mutex<Vec<f32>>,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Table {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn owner_functions(dropped: &Arc<AtomicUsize>) -> FunctionRegistry {
    let mut functions = FunctionRegistry::new();
    let dropped = Arc::clone(dropped);
    functions.register(&CREATE, move |context, (), _| {
        let table = Table {
            values: Default::default(),
            dropped: Arc::clone(&dropped),
        };
        Ok((context.share(table), CallValues::none()))
    });
    functions.register(&ADD, |context, ticket, values| {
        let table = context.object::<Table>(&ticket)?;
        let mut all = table
            .values
            .lock()
            .map_err(|_| ronde_rpc::FunctionError::new("poisoned"))?;
        all.extend_from_slice(&values);
        Ok((all.len(), CallValues::none()))
    });
    functions
}

fn holder_functions() -> FunctionRegistry {
    let mut functions = FunctionRegistry::new();
    functions.register(&PASS, |context, ticket, _| {
        let table: RemoteRef<Table> = context.node().adopt(ticket, LIMIT)?;
        Ok((add(context.node(), &table)?, CallValues::none()))
    });
    functions
}

fn add(node: &RpcNode, table: &RemoteRef<Table>) -> Result<usize, RpcError> {
    let target = CallTarget::Worker(table.owner());
    Ok(node
        .call(target, &ADD, &table.ticket(), vec![1.0], LIMIT)?
        .0)
}

fn create(node: &RpcNode) -> RemoteRef<Table> {
    let none = CallValues::none();
    node.hold(node.call(OWNER, &CREATE, &(), none, LIMIT).unwrap().0)
}

/// A lease that a test sees end; a holder renews it in time on a busy machine, too.
const LEASE: Duration = Duration::from_secs(3);

struct Job {
    owner: RpcNode,
    one: RpcNode,
    two: RpcNode,
    dropped: Arc<AtomicUsize>,
}

fn job(lease: Duration) -> Job {
    let sockets = [listen(), listen(), listen()];
    let names = ["owner", "one", "two"];
    let addresses = sockets.each_ref().map(|(_, at)| *at);
    let dropped = Arc::default();
    let mut nodes = sockets
        .into_iter()
        .enumerate()
        .map(|(index, (listener, _))| {
            let others = (0..3).filter(|other| *other != index);
            let peers = others
                .map(|other| peer(names[other], addresses[other]))
                .collect();
            let mut config = config(names[index]);
            config.limits = RpcLimits {
                lease,
                ..RpcLimits::default()
            };
            let functions = if index == 0 {
                owner_functions(&dropped)
            } else {
                holder_functions()
            };
            RpcNode::open(config, listener, peers, functions).unwrap()
        });
    let mut next = || nodes.next().unwrap();
    Job {
        owner: next(),
        one: next(),
        two: next(),
        dropped: dropped.clone(),
    }
}

#[test]
fn an_object_lives_as_long_as_any_holder() {
    let Job {
        owner,
        one,
        two,
        dropped,
    } = job(Duration::from_secs(60));
    let table = create(&one);
    assert_eq!(add(&one, &table), Ok(1));
    // Another worker that only knows the number has no access.
    let stolen: RemoteRef<Table> = two.hold(table.ticket());
    let error = add(&two, &stolen).unwrap_err();
    assert!(
        error.to_string().contains("two does not hold object"),
        "{error}"
    );
    drop(stolen);
    let second: RemoteRef<Table> = two.adopt(table.ticket(), LIMIT).unwrap();
    let clone = second.clone();
    drop((table, second));
    wait_until("one release", || add(&two, &clone).is_ok());
    let passed = one.adopt::<Table>(clone.ticket(), LIMIT).unwrap();
    drop(clone);
    sleep(Duration::from_millis(200));
    assert!(add(&one, &passed).unwrap() >= 3);
    assert_eq!(
        (owner.shared_objects(), dropped.load(Ordering::SeqCst)),
        (1, 0)
    );
    let ticket = passed.ticket();
    drop(passed);
    wait_until("the end of the table", || {
        dropped.load(Ordering::SeqCst) == 1
    });
    let error = one.adopt::<Table>(ticket, LIMIT).unwrap_err();
    assert!(matches!(error, RpcError::ReferenceLost { .. }), "{error}");
    assert_eq!(owner.shared_objects(), 0);
}

#[test]
fn a_function_adopts_an_object_that_its_caller_holds() {
    let Job {
        owner, one, two, ..
    } = job(Duration::from_secs(60));
    let table = create(&one);
    let none = CallValues::none();
    let target = CallTarget::Worker("two");
    let count = one
        .call(target, &PASS, &table.ticket(), none, LIMIT)
        .unwrap()
        .0;
    assert_eq!((count, add(&one, &table).unwrap()), (1, 2));
    // A separate object.
    let own = owner.share(7_u32);
    let again: RemoteRef<u32> = owner.adopt(own.ticket(), LIMIT).unwrap();
    assert_eq!(owner.shared_objects(), 2);
    drop((own, again, table));
    wait_until("the end of all objects", || owner.shared_objects() == 0);
    drop(two);
}

#[test]
fn a_reference_outlives_its_lease_while_its_holder_lives() {
    let Job {
        owner, one, two, ..
    } = job(LEASE);
    let table = create(&one);
    // A grant that no worker takes over ends with its lease.
    let none = CallValues::none();
    one.call(OWNER, &CREATE, &(), none, LIMIT).unwrap();
    assert_eq!(owner.shared_objects(), 2);
    wait_until("the end of the lost grant", || owner.shared_objects() == 1);
    // The table is older than that grant. It stays for another lease.
    sleep(LEASE + Duration::from_secs(1));
    assert_eq!(add(&one, &table), Ok(1));
    drop(two);
}

/// The variable with the addresses of a process that holds an object and is killed.
const HOLDER: &str = "RONDE_RPC_TEST_HOLDER";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

#[test]
fn the_objects_of_a_killed_holder_are_released() {
    let ((at_owner, owner_address), (at_one, one_address)) = (listen(), listen());
    drop(at_one);
    let dropped = Arc::default();
    let mut settings = config("owner");
    settings.limits.lease = LEASE;
    let peers = vec![peer("one", one_address)];
    let owner = RpcNode::open(settings, at_owner, peers, owner_functions(&dropped)).unwrap();
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args([
            "--exact",
            "references::the_process_of_a_holder",
            "--nocapture",
            "--ignored",
        ])
        .env(HOLDER, format!("{one_address} {owner_address}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut holder = Killed(child);
    wait_until("three objects of the other process", || {
        owner.shared_objects() == 3
    });
    // They stay for longer than a lease.
    sleep(LEASE + Duration::from_secs(1));
    assert_eq!(owner.shared_objects(), 3);
    holder.0.kill().unwrap();
    wait_until("their release", || owner.shared_objects() == 0);
    assert_eq!(dropped.load(Ordering::SeqCst), 3);
}

#[test]
#[ignore = "run by the_objects_of_a_killed_holder_are_released"]
#[expect(clippy::disallowed_methods, reason = "the addresses of the test")]
fn the_process_of_a_holder() {
    let Ok(addresses) = std::env::var(HOLDER) else {
        return;
    };
    let (mine, owner) = addresses.split_once(' ').unwrap();
    let listener = std::net::TcpListener::bind(mine).unwrap();
    let mut settings = config("one");
    settings.limits.lease = LEASE;
    let peers = vec![peer("owner", owner.parse().unwrap())];
    let node = RpcNode::open(settings, listener, peers, holder_functions()).unwrap();
    let held = [create(&node), create(&node), create(&node)];
    sleep(Duration::from_secs(60));
    drop(held);
}
