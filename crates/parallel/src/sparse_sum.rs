//! [`SparseSum`]: the exact sum of gradients of tables, which exchanges only the blocks that are not zero.
//!
//! Each rank sends the sizes of its subtrees, then their blocks to all ranks, and each rank adds them along the tree of the
//! exact sum. The bits are those of the dense sum. If some subtree has enough blocks that the dense sum sends fewer bytes, all
//! ranks take that one: they know all sizes, so they decide alike.
//! Cost of `n` ranks: 8 bytes for each subtree, then the blocks of a rank `n - 1` times.
//!
//! All ranks receive all blocks, which is one exchange: to divide them among the owners of slices would need a second one with
//! other sizes. Blocks instead of rows need no knowledge of tensors. The update covers all rows, because moments decay without a
//! gradient too.

use ronde_core::exact::{ExactSum, Node, additions};
use ronde_core::sparse::{SparseSize, SparseValues};
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Operation, Work,
};

/// The sparse sum is taken if it sends less than this share of the bytes of the dense one, which needs no second exchange and,
/// within a host, no copies.
const BYTES_SHARE: f64 = 0.5;
/// Marks a subtree that has too many blocks.
const DENSE: SparseSize = SparseSize {
    runs: u32::MAX,
    blocks: u32::MAX,
};

/// A sum that has begun: the sizes are on their way.
pub(crate) struct SparseSum {
    sum: ExactSum,
    /// The number of elements of a subtree.
    len: usize,
    /// This rank's subtrees; empty if one of them has too many blocks.
    own: Vec<SparseValues>,
    sizes: Box<dyn Work>,
}

/// Returns the bytes that the dense sum sends at most from one rank: its subtrees to the ranks that finish the sum of a slice, and a slice
/// to each rank.
fn dense_bytes(sum: &ExactSum, len: usize, is_scattered: bool) -> f64 {
    let ranks = sum.size() as f64;
    let nodes = (0..sum.size()).map(|rank| sum.nodes(GroupRank(rank as u32)).len());
    let rounds = nodes.max().unwrap_or(0) + usize::from(!is_scattered);
    (ranks - 1.0) / ranks * (4 * len * rounds) as f64
}

impl SparseSum {
    /// Starts the exchange of the sizes of this rank's subtrees.
    ///
    /// # Errors
    /// A rank was lost.
    pub(crate) fn start(
        group: &dyn Collectives,
        sum: ExactSum,
        subtrees: &[(Node, Buffer)],
        len: usize,
        is_scattered: bool,
    ) -> Result<Self, CollectiveError> {
        let others = sum.size().saturating_sub(1).max(1) as f64;
        let bytes_max = BYTES_SHARE * dense_bytes(&sum, len, is_scattered) / others;
        let mut left = bytes_max as usize;
        let own = subtrees.iter().map(|(_, subtree)| {
            let sparse = SparseValues::of(subtree.as_slice(), left)?;
            left -= sparse.size().bytes();
            Some(sparse)
        });
        let own: Option<Vec<SparseValues>> = own.collect();
        let sizes = match &own {
            Some(own) => own.iter().map(SparseValues::size).collect(),
            None => vec![DENSE; subtrees.len()],
        };
        let words = sizes.iter().flat_map(|size| [size.runs, size.blocks]);
        let words: Vec<u32> = words.collect();
        let mut buffer = group.allocate(DType::U32, words.len())?;
        buffer.as_mut_slice().copy_from_slice(&words);
        Ok(Self {
            sum,
            len,
            own: own.unwrap_or_default(),
            sizes: group.start(Operation::AllGather, buffer)?,
        })
    }

    /// Returns the sum; `None` if all ranks have to take the dense one.
    ///
    /// # Errors
    /// A rank was lost, or sent something else.
    pub(crate) fn wait(
        self,
        group: &dyn Collectives,
    ) -> Result<Option<SparseValues>, CollectiveError> {
        let words = self.sizes.wait()?;
        let (pairs, _) = words.as_slice::<u32>().as_chunks::<2>();
        let sizes = pairs
            .iter()
            .map(|&[runs, blocks]| SparseSize { runs, blocks });
        let sizes: Vec<SparseSize> = sizes.collect();
        if sizes.contains(&DENSE) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        self.own.iter().for_each(|own| own.encode(&mut bytes));
        let all = group.all_gather(&bytes)?;
        let ranks = (0..self.sum.size()).map(|rank| GroupRank(rank as u32));
        let nodes: Vec<Node> = ranks.flat_map(|rank| self.sum.nodes(rank)).collect();
        let subtrees = decode(&all, &sizes, self.len, nodes.len());
        let mut subtrees = subtrees.ok_or_else(|| CollectiveError::Invalid {
            operation: "sparse sum".to_owned(),
            problem: "a rank has sent invalid blocks".to_owned(),
        })?;
        for (into, from) in additions(&nodes, self.sum.shards()) {
            let added = subtrees[into].add(&subtrees[from]);
            subtrees[into] = added;
            subtrees[from] = SparseValues::default();
        }
        Ok(subtrees.into_iter().next())
    }
}

/// Reads the subtrees of all ranks; `None` if they are not valid.
fn decode(
    mut bytes: &[u8],
    sizes: &[SparseSize],
    len: usize,
    nodes: usize,
) -> Option<Vec<SparseValues>> {
    let subtrees = sizes.iter().map(|size| {
        let (own, rest) = bytes.split_at_checked(size.bytes())?;
        bytes = rest;
        SparseValues::decode(own, len, *size)
    });
    let subtrees: Option<Vec<SparseValues>> = subtrees.collect();
    subtrees.filter(|subtrees| subtrees.len() == nodes && bytes.is_empty())
}
