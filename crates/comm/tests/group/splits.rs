//! Sub-groups: by colour, along a mesh, overlapping, ending separately.

use std::time::Duration;

use ronde_comm::testing::{run_ranks, spawn_ranks};
use ronde_core::{CollectiveError, Collectives, CollectivesExt, Mesh, ReduceOp};

use crate::meshes::{Kind, groups};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn colours_make_groups_in_the_order_of_their_keys() {
    for kind in [Kind::InProcess, Kind::Tcp, Kind::TwoHosts] {
        run_ranks(groups(kind, 5, LIMIT), LIMIT, |group| {
            let rank = group.rank().0;
            let colour = (rank != 4).then_some(rank % 2);
            let sub = group.split(colour, 100 - rank)?;
            let Some(sub) = sub else {
                assert_eq!(rank, 4);
                return group.barrier();
            };
            assert_eq!((sub.size(), sub.rank().0), (2, 1 - rank / 2));
            assert_eq!(sub.all_gather(&[rank])?, [rank % 2 + 2, rank % 2]);
            let lone = sub.split(Some(rank), 0)?.expect("it gave a colour");
            assert_eq!(lone.size(), 1);
            let mut both = [rank];
            let again = sub.split(Some(7), rank)?.expect("it gave a colour");
            drop(sub);
            again.all_reduce(&mut both, ReduceOp::Sum)?;
            assert_eq!(both, [2 * (rank % 2) + 2]);
            group.barrier()
        });
    }
}

#[test]
fn axes_of_a_mesh_make_overlapping_groups() {
    for kind in [Kind::InProcess, Kind::Tcp, Kind::TwoHosts] {
        run_ranks(groups(kind, 6, LIMIT), LIMIT, |group| {
            let mesh = Mesh::new([("dp", 3), ("tp", 2)]).expect("the axes differ");
            let dp = group.split_mesh(&mesh, "dp")?;
            let tp = group.split_mesh(&mesh, "tp")?;
            let rank = group.rank().0;
            assert_eq!(
                dp.all_gather(&[rank])?,
                [rank % 2, rank % 2 + 2, rank % 2 + 4]
            );
            assert_eq!(tp.all_gather(&[rank])?, [rank / 2 * 2, rank / 2 * 2 + 1]);
            assert_eq!(tp.config().name, format!("tp.{}", rank / 2 * 2));
            assert!(group.split_mesh(&mesh, "pp").is_err());
            let small = Mesh::new([("dp", 2)]).expect("one axis");
            assert!(group.split_mesh(&small, "dp").is_err());
            group.barrier()
        });
    }
}

#[test]
fn the_records_of_a_rank_have_those_of_its_sub_groups_while_they_exist() {
    spawn_ranks(4, LIMIT, |group| {
        let rank = group.rank().0;
        let sub = group.split(Some(rank % 2), rank)?.expect("a colour");
        let nested = sub.split(Some(0), rank)?.expect("a colour");
        sub.barrier()?;
        let records = group.flight_records();
        let names: Vec<&str> = records.iter().map(|record| record.group.as_str()).collect();
        assert_eq!(names, ["test", &format!("test.0.{}", rank % 2)]);
        assert!(records[0].members.is_empty());
        let members: Vec<u32> = records[1].members.iter().map(|rank| rank.0).collect();
        assert_eq!(members, [rank % 2, rank % 2 + 2]);
        let last = records[1].operations.last().expect("it has run one");
        assert_eq!(last.kind, "barrier");
        let of_nested = &sub.flight_records()[1];
        assert_eq!(of_nested.members, records[1].members);
        drop(nested);
        drop(sub);
        assert_eq!(group.flight_records().len(), 1);
        group.barrier()
    });
}

#[test]
fn a_sub_group_fails_and_ends_without_its_parent() {
    spawn_ranks(4, LIMIT, |group| {
        let sub = group.split_with(Some(group.rank().0 / 2), 0, |config| {
            config.timeout = Duration::from_millis(150);
        })?;
        let sub = sub.expect("it gave a colour");
        if group.rank().0 % 2 == 0 {
            let error = sub.barrier().unwrap_err();
            assert!(matches!(error, CollectiveError::Timeout { .. }), "{error}");
        }
        group.barrier()?;
        // The first call may still receive data that the other member sent before it failed.
        assert!(sub.barrier().and_then(|()| sub.barrier()).is_err());
        let next = group.split(Some(0), 0)?.expect("it gave a colour");
        next.barrier()?;
        group.abort("enough");
        next.barrier()?;
        Ok::<_, CollectiveError>(())
    });
}
