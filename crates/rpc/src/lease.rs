//! [`LeaseTable`]: which workers hold which objects of this node, as a state machine without a clock.
//!
//! An object ends when no holder has named it for the length of a lease. A lost message, a lost grant and a killed holder are
//! therefore one case.

use std::collections::BTreeMap;
use std::time::Duration;

/// A process that calls or holds: its worker's name, and a number that differs after a restart.
pub(crate) type ProcessName = (String, u64);

/// The objects that a node shares, each with its holders. A holder names its objects regularly. It loses an object when it
/// releases it, or does not name it for longer than a lease; an object without holders ends.
pub(crate) struct LeaseTable<O> {
    lease: Duration,
    objects: BTreeMap<u64, SharedObject<O>>,
    next: u64,
}

struct SharedObject<O> {
    object: O,
    grants: BTreeMap<ProcessName, Grant>,
}

struct Grant {
    /// How often the holder was given the object, less how often it has released it.
    count: u64,
    renewed: Duration,
}

impl<O> LeaseTable<O> {
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            lease,
            objects: BTreeMap::new(),
            next: 1,
        }
    }

    /// Adds an object with its first holder, and returns its number.
    pub(crate) fn share(&mut self, now: Duration, object: O, holder: &ProcessName) -> u64 {
        let number = self.next;
        self.next += 1;
        let grants = BTreeMap::new();
        self.objects.insert(number, SharedObject { object, grants });
        self.grant(now, number, holder);
        number
    }

    /// Adds a holder to an object, or another grant to a holder. Returns false if the object has ended.
    pub(crate) fn grant(&mut self, now: Duration, number: u64, holder: &ProcessName) -> bool {
        let Some(shared) = self.objects.get_mut(&number) else {
            return false;
        };
        let grant = shared.grants.entry(holder.clone()).or_insert(Grant {
            count: 0,
            renewed: now,
        });
        grant.count += 1;
        grant.renewed = now;
        true
    }

    /// Takes back `count` grants of a holder. Returns the object if that was the last one.
    pub(crate) fn release(&mut self, number: u64, holder: &ProcessName, count: u64) -> Option<O> {
        let shared = self.objects.get_mut(&number)?;
        let grant = shared.grants.get_mut(holder)?;
        grant.count = grant.count.saturating_sub(count);
        if grant.count > 0 {
            return None;
        }
        shared.grants.remove(holder);
        self.end_if_unheld(number)
    }

    /// A holder has named these objects.
    pub(crate) fn renew(&mut self, now: Duration, holder: &ProcessName, numbers: &[u64]) {
        for number in numbers {
            let shared = self.objects.get_mut(number);
            if let Some(grant) = shared.and_then(|shared| shared.grants.get_mut(holder)) {
                grant.renewed = now;
            }
        }
    }

    /// Returns an object that `holder` holds.
    pub(crate) fn object(&self, number: u64, holder: &ProcessName) -> Option<&O> {
        let shared = self.objects.get(&number)?;
        shared.grants.contains_key(holder).then_some(&shared.object)
    }

    /// Returns the objects that have ended because no holder has named them. The owner itself need not.
    pub(crate) fn tick(&mut self, now: Duration, owner: &ProcessName) -> Vec<O> {
        let lease = self.lease;
        let is_live = |holder: &ProcessName, grant: &Grant| {
            holder == owner || now.saturating_sub(grant.renewed) <= lease
        };
        for shared in self.objects.values_mut() {
            shared.grants.retain(|holder, grant| is_live(holder, grant));
        }
        let unheld = self.objects.iter().filter(|(_, o)| o.grants.is_empty());
        let unheld: Vec<u64> = unheld.map(|(&number, _)| number).collect();
        let ended = unheld.iter().filter_map(|n| self.end_if_unheld(*n));
        ended.collect()
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    fn end_if_unheld(&mut self, number: u64) -> Option<O> {
        let is_held = !self.objects.get(&number)?.grants.is_empty();
        match is_held {
            true => None,
            false => self.objects.remove(&number).map(|shared| shared.object),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn holder(name: &str, process: u64) -> ProcessName {
        (name.to_owned(), process)
    }

    #[test]
    fn an_object_ends_with_the_last_grant_of_its_last_holder() {
        let mut table = LeaseTable::new(LEASE);
        let (one, two) = (holder("one", 1), holder("two", 1));
        let number = table.share(at(0), "object", &one);
        assert!(table.grant(at(0), number, &one) && table.grant(at(0), number, &two));
        assert_eq!(table.release(number, &one, 1), None);
        assert_eq!(table.object(number, &one), Some(&"object"));
        assert_eq!(table.release(number, &one, 5), None);
        assert_eq!(table.object(number, &one), None);
        assert_eq!(table.release(number, &one, 1), None);
        assert_eq!(table.release(number, &two, 1), Some("object"));
        assert!(!table.grant(at(0), number, &two));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn an_object_that_no_holder_names_ends_and_those_of_a_successor_do_not() {
        let mut table = LeaseTable::new(LEASE);
        let (old, new, owner) = (holder("one", 1), holder("one", 2), holder("me", 1));
        let first = table.share(at(0), 1, &old);
        let second = table.share(at(0), 2, &old);
        let own = table.share(at(0), 3, &owner);
        assert!(table.grant(at(5), second, &new));
        assert_eq!(table.tick(at(10), &owner), [0; 0]);
        table.renew(at(10), &old, &[first, 99]);
        table.renew(at(11), &new, &[first, second, own]);
        assert_eq!(table.tick(at(20), &owner), [0; 0]);
        assert_eq!(table.object(second, &old), None);
        assert_eq!(table.tick(at(21), &owner), [1]);
        assert_eq!(table.object(second, &new), Some(&2));
        assert_eq!(table.tick(at(22), &owner), [2]);
        assert_eq!(table.tick(at(3_000), &owner), [0; 0]);
        assert_eq!(table.len(), 1);
    }
}
