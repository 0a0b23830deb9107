//! [`Mesh`]: the n-dimensional arrangement of ranks, and the groups along its axes.

use crate::rank::Rank;

/// One axis of a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// The name: `dp`, `fsdp`, `pp`, `tp`.
    pub name: String,
    /// The number of coordinates.
    pub size: u32,
}

/// Ranks arranged row-major: the last axis varies fastest, so its members are neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    axes: Vec<Axis>,
}

/// The reason why axes make no mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// Two axes have the same name.
    #[error("mesh axis {axis} appears twice")]
    RepeatedAxis {
        /// The name.
        axis: String,
    },
    /// An axis has size 0.
    #[error("mesh axis {axis} has no coordinate")]
    EmptyAxis {
        /// The name.
        axis: String,
    },
    /// The number of ranks overflows.
    #[error("the mesh has more than 2^32 ranks")]
    TooManyRanks,
}

impl Mesh {
    /// Creates a mesh of the given axes.
    ///
    /// # Errors
    /// Returns an error if an axis is empty, a name appears twice, or there are more than 2^32 ranks.
    pub fn new<'a>(axes: impl IntoIterator<Item = (&'a str, u32)>) -> Result<Self, MeshError> {
        let mut mesh = Self { axes: Vec::new() };
        let mut count: u32 = 1;
        for (name, size) in axes {
            if mesh.axes.iter().any(|axis| axis.name == name) {
                return Err(MeshError::RepeatedAxis {
                    axis: name.to_owned(),
                });
            }
            if size == 0 {
                return Err(MeshError::EmptyAxis {
                    axis: name.to_owned(),
                });
            }
            count = count.checked_mul(size).ok_or(MeshError::TooManyRanks)?;
            mesh.axes.push(Axis {
                name: name.to_owned(),
                size,
            });
        }
        Ok(mesh)
    }

    /// Creates a mesh with one axis, `dp`: plain data parallelism.
    #[must_use]
    pub fn data_parallel(world_size: crate::WorldSize) -> Self {
        Self {
            axes: vec![Axis {
                name: "dp".to_owned(),
                size: world_size.get(),
            }],
        }
    }

    /// Returns the axes, slowest first.
    #[must_use]
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Returns false: every axis has at least one coordinate.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the coordinates of a rank, one per axis; `None` if it is not in the mesh.
    #[must_use]
    pub fn coord(&self, rank: Rank) -> Option<Vec<u32>> {
        if rank.0 >= self.len() {
            return None;
        }
        let mut rest = rank.0;
        let mut coord = vec![0; self.axes.len()];
        for (place, axis) in coord.iter_mut().zip(&self.axes).rev() {
            *place = rest % axis.size;
            rest /= axis.size;
        }
        Some(coord)
    }

    /// Returns the rank at coordinates; `None` if they are not in the mesh.
    #[must_use]
    pub fn rank(&self, coord: &[u32]) -> Option<Rank> {
        if coord.len() != self.axes.len() {
            return None;
        }
        let mut rank = 0;
        for (&place, axis) in coord.iter().zip(&self.axes) {
            if place >= axis.size {
                return None;
            }
            rank = rank * axis.size + place;
        }
        Some(Rank(rank))
    }

    /// Returns the ranks that differ from `rank` along one axis only, in order of that coordinate. They are the
    /// members of its process group for that axis. `None` for an unknown axis or rank.
    #[must_use]
    pub fn group(&self, rank: Rank, axis: &str) -> Option<Vec<Rank>> {
        let place = self.axes.iter().position(|a| a.name == axis)?;
        let mut coord = self.coord(rank)?;
        (0..self.axes[place].size)
            .map(|c| {
                coord[place] = c;
                self.rank(&coord)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(axes: &[(&str, u32)]) {
        let mesh = Mesh::new(axes.iter().copied()).unwrap();
        for rank in (0..mesh.len()).map(Rank) {
            let coord = mesh.coord(rank).unwrap();
            assert_eq!(mesh.rank(&coord), Some(rank));
            for (place, (name, size)) in axes.iter().enumerate() {
                let group = mesh.group(rank, name).unwrap();
                assert_eq!(group.len(), *size as usize);
                assert_eq!(group[coord[place] as usize], rank);
                for &peer in &group {
                    assert_eq!(
                        mesh.group(peer, name).unwrap(),
                        group,
                        "groups are equal on all members"
                    );
                }
            }
        }
        assert_eq!(mesh.coord(Rank(mesh.len())), None);
    }

    #[test]
    fn every_mesh_of_up_to_sixteen_ranks() {
        for dp in 1..=16 {
            check(&[("dp", dp)]);
            for pp in (1..=16).filter(|pp| dp * pp <= 16) {
                check(&[("dp", dp), ("pp", pp)]);
                for tp in (1..=16).filter(|tp| dp * pp * tp <= 16) {
                    check(&[("dp", dp), ("pp", pp), ("tp", tp)]);
                }
            }
        }
    }

    #[test]
    fn invalid_meshes_are_rejected_with_a_message() {
        assert!(
            Mesh::new([("dp", 2), ("dp", 2)])
                .unwrap_err()
                .to_string()
                .contains("twice")
        );
        assert!(
            Mesh::new([("dp", 0)])
                .unwrap_err()
                .to_string()
                .contains("no coordinate")
        );
        assert!(Mesh::new([("dp", 1 << 20), ("tp", 1 << 20)]).is_err());
    }
}
