//! Finds which ranks differ in which tensors after replicas have diverged.

use ronde_core::{CollectiveError, Collectives, CollectivesExt, Step};
use ronde_parallel::ModelState;

/// Gathers the hash of each tensor from all ranks and reports the differences. All ranks call it together.
///
/// # Errors
/// The all-gather failed.
pub fn diagnose(
    group: &dyn Collectives,
    state: &ModelState,
    step: Step,
) -> Result<String, CollectiveError> {
    // Hashes are sent as i64 with the same bits, because no element type is unsigned with 64 bits.
    let mine: Vec<i64> = state
        .tensor_digests()
        .into_iter()
        // A rank without the tensor sends 0.
        .map(|digest| digest.map_or(0, |digest| digest.max(1)).cast_signed())
        .collect();
    let all: Vec<u64> = group
        .all_gather(&mine)?
        .into_iter()
        .map(i64::cast_unsigned)
        .collect();
    let names: Vec<&str> = state
        .tensors()
        .iter()
        .map(|tensor| tensor.entry.name.as_str())
        .collect();
    let per_rank: Vec<&[u64]> = all.chunks_exact(mine.len().max(1)).collect();
    Ok(report(&names, &per_rank, step))
}

/// Reports which ranks differ from the majority in which tensors. 0 is the digest of a rank that does not have the tensor.
#[must_use]
pub fn report(names: &[&str], per_rank: &[&[u64]], step: Step) -> String {
    const SHOWN: usize = 5;
    let mut lines = Vec::new();
    for (tensor, name) in names.iter().enumerate() {
        let digests: Vec<u64> = per_rank.iter().map(|digests| digests[tensor]).collect();
        let present = || digests.iter().copied().filter(|digest| *digest != 0);
        let votes = |digest: u64| present().filter(|&d| d == digest).count();
        let most = present().map(votes).max().unwrap_or(0);
        if most == present().count() {
            continue;
        }
        if most * 2 > present().count() {
            let odd: Vec<String> = (0..digests.len())
                .filter(|&rank| digests[rank] != 0 && votes(digests[rank]) != most)
                .map(|rank| format!("rank {rank}"))
                .collect();
            lines.push(format!("{} differs in {name}", odd.join(", ")));
        } else {
            let each: Vec<String> = digests
                .iter()
                .enumerate()
                .filter(|(_, digest)| **digest != 0)
                .map(|(rank, d)| format!("rank {rank} has {d:016x}"))
                .collect();
            lines.push(format!(
                "{name} differs and no majority agrees on its value: {}",
                each.join(", ")
            ));
        }
    }
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more tensors"));
    }
    if lines.is_empty() {
        lines.push("the compared hashes differ, but the tensors are equal now".to_owned());
    }
    format!(
        "the weights of the replicas differ after step {step}\n  {}\n  \
         help: a host with faulty memory or another CPU is the usual cause; run the named rank elsewhere",
        lines.join("\n  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_differing_rank_and_tensor_are_reported() {
        let text = report(
            &["conv1.weight", "fc.bias"],
            &[&[1, 2], &[1, 2], &[1, 9]],
            Step(7),
        );
        assert!(
            text.contains("after step 7") && text.contains("rank 2 differs in fc.bias"),
            "{text}"
        );
        assert!(!text.contains("conv1"));
        let tie = report(&["w"], &[&[1], &[2]], Step(0));
        assert!(
            tie.contains("no majority") && tie.contains("rank 1 has 0000000000000002"),
            "{tie}"
        );
        assert!(report(&["w"], &[&[1], &[1]], Step(0)).contains("are equal now"));
        let parts = report(&["a", "b"], &[&[1, 0], &[1, 0], &[0, 2], &[0, 3]], Step(0));
        assert!(
            parts.contains("b differs") && !parts.contains("rank 0"),
            "{parts}"
        );
    }
}
