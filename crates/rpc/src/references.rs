//! [`RemoteRef`]: references to objects of other workers, with leases.

use std::any::Any;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{FunctionError, RpcError};
use crate::function::{FunctionRegistry, RemoteFunction};
use crate::node::RpcNode;
use crate::node::{CallContext, NodeShared};
use crate::peers::CallTarget;
use crate::values::CallValues;

/// Objects that one message renews.
const RENEWED_TOGETHER: usize = 20_000;

/// Renews and releases objects of the callee.
const RENEW: RemoteFunction<Renewal, ()> = RemoteFunction::new("ronde.references.renew", 1);
/// Adds the caller to the holders of an object: (process of the owner, object).
const ADOPT: RemoteFunction<(u64, u64), bool> = RemoteFunction::new("ronde.references.adopt", 1);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Renewal {
    /// The owner's process; objects of an earlier one are gone.
    process: u64,
    held: Vec<u64>,
    /// Objects, and how many grants are returned.
    released: Vec<(u64, u64)>,
}

/// The name of an object in messages. A ticket that a function has returned to its caller is a grant: the caller must pass
/// it to [`RpcNode::hold`]. Any other worker that receives a ticket passes it to [`RpcNode::adopt`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReferenceTicket {
    /// The name of the worker that has the object.
    pub owner: String,
    /// The owner's process: an owner that has restarted has lost its objects.
    pub process: u64,
    /// The number of the object at its owner.
    pub object: u64,
}

/// The objects of other workers that this process holds.
#[derive(Default)]
pub(crate) struct HeldObjects {
    by_ticket: BTreeMap<ReferenceTicket, Weak<HeldObject>>,
    renewed: Duration,
}

struct HeldObject {
    ticket: ReferenceTicket,
    grants: AtomicU64,
    node: Weak<NodeShared>,
}

impl Drop for HeldObject {
    fn drop(&mut self) {
        if let Some(node) = self.node.upgrade() {
            let grants = self.grants.load(Ordering::SeqCst);
            let mut released = node.released.lock().unwrap_or_else(PoisonError::into_inner);
            released.push((self.ticket.clone(), grants));
        }
    }
}

/// A reference to an object of type `T` of another worker, or of this one. Clones count as one holder. While any clone
/// exists, the node renews its lease at the owner; the last one releases the object. The objects of a holder that is killed
/// end one lease later ([`RpcLimits::lease`](crate::RpcLimits::lease)).
///
/// The object itself never travels: pass [`RemoteRef::ticket`] to a function of the owner, which finds the object by
/// [`CallContext::object`].
pub struct RemoteRef<T> {
    held: Arc<HeldObject>,
    object: PhantomData<fn() -> T>,
}

impl<T> Clone for RemoteRef<T> {
    fn clone(&self) -> Self {
        Self {
            held: Arc::clone(&self.held),
            object: PhantomData,
        }
    }
}

impl<T> RemoteRef<T> {
    /// Returns the object's name in messages.
    #[must_use]
    pub fn ticket(&self) -> ReferenceTicket {
        self.held.ticket.clone()
    }

    /// Returns the name of the worker that has the object.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.held.ticket.owner
    }
}

impl<T> std::fmt::Debug for RemoteRef<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.held.ticket.fmt(f)
    }
}

impl RpcNode {
    /// Shares an object of this process, with this process as its first holder.
    pub fn share<T: Send + Sync + 'static>(&self, object: T) -> RemoteRef<T> {
        let me = &self.shared.me;
        let now = self.shared.clock.elapsed();
        let number = self.shared.lock().objects.share(now, Arc::new(object), me);
        self.hold(ReferenceTicket {
            owner: me.0.clone(),
            process: me.1,
            object: number,
        })
    }

    /// Takes over a ticket that a function has returned for this caller ([`CallContext::share`]).
    #[must_use]
    pub fn hold<T>(&self, ticket: ReferenceTicket) -> RemoteRef<T> {
        let mut state = self.shared.lock();
        let known = state.held.by_ticket.get(&ticket);
        let held = match known.and_then(Weak::upgrade) {
            Some(held) => {
                held.grants.fetch_add(1, Ordering::SeqCst);
                held
            }
            None => {
                let held = Arc::new(HeldObject {
                    ticket: ticket.clone(),
                    grants: AtomicU64::new(1),
                    node: Arc::downgrade(&self.shared),
                });
                state.held.by_ticket.insert(ticket, Arc::downgrade(&held));
                held
            }
        };
        drop(state);
        RemoteRef {
            held,
            object: PhantomData,
        }
    }

    /// Becomes a holder of an object whose ticket another holder has passed on. That holder must keep its reference until
    /// this returns. Cost: one call to the owner.
    ///
    /// # Errors
    /// [`RpcError::ReferenceLost`] when the object has ended, and those of [`RpcNode::call`].
    pub fn adopt<T>(
        &self,
        ticket: ReferenceTicket,
        limit: Duration,
    ) -> Result<RemoteRef<T>, RpcError> {
        let is_granted = if ticket.owner == self.shared.me.0 {
            let now = self.shared.clock.elapsed();
            let is_mine = ticket.process == self.shared.me.1;
            let mut state = self.shared.lock();
            is_mine && state.objects.grant(now, ticket.object, &self.shared.me)
        } else {
            let target = CallTarget::Worker(&ticket.owner);
            let arguments = (ticket.process, ticket.object);
            let values = CallValues::none();
            self.call(target, &ADOPT, &arguments, values, limit)?.0
        };
        if is_granted {
            return Ok(self.hold(ticket));
        }
        Err(RpcError::ReferenceLost {
            owner: ticket.owner,
            object: ticket.object,
            cause: "no worker holds it any more, or its owner has restarted".to_owned(),
        })
    }
}

impl CallContext {
    /// Shares an object with the caller, which passes the returned ticket to [`RpcNode::hold`]. If it never arrives
    /// there, the object ends after a lease.
    pub fn share<T: Send + Sync + 'static>(&self, object: T) -> ReferenceTicket {
        let shared = &self.node().shared;
        let now = shared.clock.elapsed();
        let object = Arc::new(object);
        let number = shared
            .lock()
            .objects
            .share(now, object, self.caller_process());
        ReferenceTicket {
            owner: shared.me.0.clone(),
            process: shared.me.1,
            object: number,
        }
    }

    /// Returns an object of this worker that the caller holds.
    ///
    /// # Errors
    /// When the caller does not hold it, this worker does not own it, or it has another type.
    pub fn object<T: Send + Sync + 'static>(
        &self,
        ticket: &ReferenceTicket,
    ) -> Result<Arc<T>, FunctionError> {
        let shared = &self.node().shared;
        let number = ticket.object;
        if (&ticket.owner, ticket.process) != (&shared.me.0, shared.me.1) {
            let owner = &ticket.owner;
            let text = format!("object {number} belongs to another process of {owner}");
            return Err(FunctionError::new(text));
        }
        let state = shared.lock();
        let object = state.objects.object(number, self.caller_process()).cloned();
        drop(state);
        let object: Arc<dyn Any + Send + Sync> = object.ok_or_else(|| {
            let caller = self.caller();
            FunctionError::new(format!("{caller} does not hold object {number}"))
        })?;
        object
            .downcast()
            .map_err(|_| FunctionError::new(format!("object {number} has another type")))
    }
}

/// Registers the functions that keep references.
pub(crate) fn register(functions: &mut FunctionRegistry) {
    functions.register_immediate(&RENEW, |context, renewal, _| {
        let shared = &context.node().shared;
        if renewal.process == shared.me.1 {
            let (now, holder) = (shared.clock.elapsed(), context.caller_process());
            let mut state = shared.lock();
            state.objects.renew(now, holder, &renewal.held);
            let release =
                |&(object, count): &(u64, u64)| state.objects.release(object, holder, count);
            let ended = renewal.released.iter().filter_map(release).collect();
            drop(state);
            shared.handlers.drop_objects(ended);
        }
        Ok(((), CallValues::none()))
    });
    functions.register_immediate(&ADOPT, |context, (process, object), _| {
        let shared = &context.node().shared;
        let now = shared.clock.elapsed();
        let holder = context.caller_process();
        let is_granted = process == shared.me.1 && shared.lock().objects.grant(now, object, holder);
        Ok((is_granted, CallValues::none()))
    });
}

/// Ends objects whose holders are silent, and renews and releases those that this process holds.
pub(crate) fn tick(shared: &Arc<NodeShared>) {
    let now = shared.clock.elapsed();
    let me = &shared.me;
    let released = {
        let released = shared.released.lock();
        std::mem::take(&mut *released.unwrap_or_else(PoisonError::into_inner))
    };
    let mut state = shared.lock();
    let mut ended = state.objects.tick(now, me);
    let mut renewals: BTreeMap<(String, u64), Renewal> = BTreeMap::new();
    for (ticket, count) in released {
        if (&ticket.owner, ticket.process) == (&me.0, me.1) {
            ended.extend(state.objects.release(ticket.object, me, count));
        } else {
            let of_owner = renewals.entry((ticket.owner, ticket.process));
            of_owner.or_default().released.push((ticket.object, count));
        }
    }
    if now.saturating_sub(state.held.renewed) >= shared.limits.lease / 3 {
        state.held.renewed = now;
        state
            .held
            .by_ticket
            .retain(|_, held| held.strong_count() > 0);
        for ticket in state.held.by_ticket.keys() {
            if ticket.owner != me.0 {
                let of_owner = renewals.entry((ticket.owner.clone(), ticket.process));
                of_owner.or_default().held.push(ticket.object);
            }
        }
    }
    drop(state);
    shared.handlers.drop_objects(ended);
    for ((owner, process), renewal) in renewals {
        send(shared, &owner, process, renewal);
    }
}

/// Sends renewals. One that is lost is repeated with the next; a release that is lost ends with the lease.
fn send(shared: &Arc<NodeShared>, owner: &str, process: u64, renewal: Renewal) {
    let node = RpcNode::without_threads(shared);
    let mut held = renewal.held.chunks(RENEWED_TOGETHER);
    let mut released = renewal.released.chunks(RENEWED_TOGETHER);
    loop {
        let (held, released) = (held.next(), released.next());
        if held.is_none() && released.is_none() {
            return;
        }
        let part = Renewal {
            process,
            held: held.unwrap_or_default().to_vec(),
            released: released.unwrap_or_default().to_vec(),
        };
        let (target, limit) = (CallTarget::Worker(owner), shared.limits.lease);
        let _repeated = node.send(target, &RENEW, &part, CallValues::none(), limit);
    }
}
