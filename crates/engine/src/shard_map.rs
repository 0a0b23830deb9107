//! [`ShardMap`]: a value for each of a few shards.

use ronde_core::Shard;

/// A value for each of the few shards that a worker has in flight, ordered by shard. Much less code for the compiler than a tree, for
/// each of the many types of values.
#[derive(Debug, Clone)]
pub(crate) struct ShardMap<T>(Vec<(Shard, T)>);

impl<T> ShardMap<T> {
    /// Creates an empty map.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    fn position(&self, shard: Shard) -> Result<usize, usize> {
        self.0.binary_search_by_key(&shard, |(shard, _)| *shard)
    }

    /// Returns the value of a shard, if it has one.
    pub(crate) fn get(&self, shard: &Shard) -> Option<&T> {
        let index = self.position(*shard).ok()?;
        Some(&self.0[index].1)
    }

    /// Returns the value of a shard, if it has one.
    pub(crate) fn get_mut(&mut self, shard: &Shard) -> Option<&mut T> {
        let index = self.position(*shard).ok()?;
        Some(&mut self.0[index].1)
    }

    /// Returns the value of a shard, after inserting an empty one if it had none.
    pub(crate) fn get_or_default(&mut self, shard: Shard) -> &mut T
    where
        T: Default,
    {
        let index = self.position(shard).unwrap_or_else(|index| {
            self.0.insert(index, (shard, T::default()));
            index
        });
        &mut self.0[index].1
    }

    /// Sets the value of a shard, instead of the previous one.
    pub(crate) fn insert(&mut self, shard: Shard, value: T) {
        match self.position(shard) {
            Ok(index) => self.0[index].1 = value,
            Err(index) => self.0.insert(index, (shard, value)),
        }
    }

    /// Removes and returns the value of a shard, if it has one.
    pub(crate) fn remove(&mut self, shard: &Shard) -> Option<T> {
        let index = self.position(*shard).ok()?;
        Some(self.0.remove(index).1)
    }

    /// Returns all values, in the order of their shards.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Removes all values.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T> Default for ShardMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_keeps_one_value_of_each_shard_in_their_order() {
        let mut map = ShardMap::new();
        for (shard, value) in [(3, "c"), (1, "a"), (2, "x"), (2, "b")] {
            map.insert(Shard(shard), value.to_owned());
        }
        assert_eq!(map.get(&Shard(2)).map(String::as_str), Some("b"));
        assert_eq!(map.get(&Shard(4)), None);
        map.get_or_default(Shard(0)).push('z');
        map.get_mut(&Shard(3)).unwrap().push('c');
        assert_eq!(map.remove(&Shard(1)), Some("a".to_owned()));
        assert_eq!(map.remove(&Shard(1)), None);
        let values: Vec<&mut String> = map.values_mut().collect();
        assert_eq!(values, ["z", "b", "cc"]);
        map.clear();
        assert_eq!(map.values_mut().count(), 0);
    }
}
