//! The command lines that train a run in a layout, as a user can paste them.

use std::path::Path;

use ronde_planner::LayoutChoice;
use ronde_schedule::{PipelineSchedule, ShardOrder};
use ronde_submit::shell_word;
use ronde_train::config::{OrderName, ParallelSection, ScheduleName};

use crate::command::pasted::path_word;

/// Returns the value of `parallel.schedule` for a schedule, parsed and as text.
pub(crate) fn schedule_name(schedule: PipelineSchedule) -> (ScheduleName, &'static str) {
    match schedule {
        PipelineSchedule::GPipe => (ScheduleName::GPipe, "gpipe"),
        PipelineSchedule::OneForwardOneBackward => (ScheduleName::OneForwardOneBackward, "1f1b"),
        PipelineSchedule::Interleaved => (ScheduleName::Interleaved, "interleaved"),
        PipelineSchedule::ZeroBubble => (ScheduleName::ZeroBubble, "zero_bubble"),
    }
}

/// Returns the arguments of `ronde train` that choose a layout, in words. `own`: what the run file and the other arguments
/// specify. A value that differs is set, also to its default.
pub(crate) fn layout_arguments(choice: &LayoutChoice, own: &ParallelSection) -> String {
    let workers = choice.workers();
    let mut text = format!("--workers {workers}");
    let mut set = |key: &str, value: &dyn std::fmt::Display, differs: bool| {
        if differs {
            text.push_str(&format!(" --set parallel.{key}={value}"));
        }
    };
    let is_pipeline = choice.pipeline > 1;
    set(
        "pipeline",
        &choice.pipeline,
        choice.pipeline != own.pipeline,
    );
    // Without a pipeline, its schedule has no effect.
    let (schedule, name) = schedule_name(choice.schedule);
    set("schedule", &name, is_pipeline && schedule != own.schedule);
    let rounds = choice.stages_per_worker;
    let is_interleaved = choice.schedule == PipelineSchedule::Interleaved;
    set(
        "stages_per_worker",
        &rounds,
        is_pipeline && is_interleaved && own.stages_per_worker.unwrap_or(2) != rounds,
    );
    set("tensor", &choice.tensor, choice.tensor != own.tensor);
    set("zero", &choice.zero, choice.zero != own.zero);
    let (name, order) = match choice.order {
        ShardOrder::ByShard => ("by_shard", OrderName::ByShard),
        ShardOrder::ByLayer | ShardOrder::LockStep => ("by_layer", OrderName::ByLayer),
    };
    set("order", &name, order != own.order);
    set(
        "copies",
        &choice.copies,
        choice.is_held_once() && own.copies_among(workers) != choice.copies,
    );
    // In these layouts, every worker computes.
    set("servers", &0, own.servers > 0);
    let has_own_stages = choice.pipeline == own.pipeline && rounds as usize == own.rounds();
    set("cuts", &"auto", !own.cuts.is_empty() && !has_own_stages);
    text
}

/// Returns what a run file must leave out, because no argument can remove it.
fn left_out(choice: &LayoutChoice, own: &ParallelSection) -> Option<&'static str> {
    let is_interleaved = choice.schedule == PipelineSchedule::Interleaved;
    (own.stages_per_worker.is_some() && choice.pipeline > 1 && !is_interleaved)
        .then_some("parallel.stages_per_worker")
}

/// Returns the command that trains a run file with settings in a layout.
pub(crate) fn train_command(
    file: Option<&Path>,
    sets: &[String],
    own: &ParallelSection,
    choice: &LayoutChoice,
) -> String {
    let mut command = "ronde train".to_owned();
    if let Some(file) = file {
        command.push_str(&format!(" {}", path_word(file)));
    }
    for set in sets {
        command.push_str(&format!(" --set {}", shell_word(set)));
    }
    command.push_str(&format!(" {}", layout_arguments(choice, own)));
    if let Some(key) = left_out(choice, own) {
        command.push_str(&format!("  # without `{key}` in the run file"));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice() -> LayoutChoice {
        LayoutChoice {
            data: 4,
            zero: 2,
            pipeline: 2,
            schedule: PipelineSchedule::ZeroBubble,
            ..LayoutChoice::ONE
        }
    }

    #[test]
    fn arguments_set_what_differs_from_the_run_file() {
        let plain = ParallelSection::default();
        assert_eq!(
            layout_arguments(&choice(), &plain),
            "--workers 8 --set parallel.pipeline=2 --set parallel.schedule=zero_bubble --set parallel.zero=2 \
             --set parallel.copies=1"
        );
        let in_parts = LayoutChoice {
            tensor: 2,
            ..choice()
        };
        let arguments = layout_arguments(&in_parts, &plain);
        assert!(arguments.contains("--workers 16 ") && arguments.contains("parallel.tensor=2"));
        let own = ParallelSection {
            zero: 2,
            copies: Some(1),
            pipeline: 2,
            schedule: ScheduleName::ZeroBubble,
            cuts: vec!["b".to_owned()],
            ..ParallelSection::default()
        };
        assert_eq!(layout_arguments(&choice(), &own), "--workers 8");
        assert_eq!(
            layout_arguments(&LayoutChoice::ONE, &own),
            "--workers 1 --set parallel.pipeline=1 --set parallel.zero=0 --set parallel.cuts=auto"
        );
        let served = ParallelSection {
            servers: 1,
            zero: 3,
            order: OrderName::ByLayer,
            tensor: 2,
            ..ParallelSection::default()
        };
        assert_eq!(
            layout_arguments(&LayoutChoice::ONE, &served),
            "--workers 1 --set parallel.tensor=1 --set parallel.zero=0 --set parallel.order=by_shard \
             --set parallel.servers=0"
        );
    }

    #[test]
    fn a_command_has_the_file_and_the_settings_as_words_of_a_shell() {
        let sets = ["run.name=my run".to_owned(), "train.epochs=2".to_owned()];
        let own = ParallelSection::default();
        let command = |file: &str, sets: &[String], own: &ParallelSection, choice| {
            train_command(Some(Path::new(file)), sets, own, choice)
        };
        assert_eq!(
            command("a b.toml", &sets, &own, &LayoutChoice::ONE),
            "ronde train 'a b.toml' --set 'run.name=my run' --set train.epochs=2 --workers 1"
        );
        assert_eq!(
            command("-x.toml", &[], &own, &LayoutChoice::ONE),
            "ronde train ./-x.toml --workers 1"
        );
        assert_eq!(
            train_command(None, &[], &own, &LayoutChoice::ONE),
            "ronde train --workers 1"
        );
        let own = ParallelSection {
            schedule: ScheduleName::Interleaved,
            stages_per_worker: Some(2),
            ..own
        };
        let with_stages = command("a.toml", &[], &own, &choice());
        assert!(with_stages.ends_with("# without `parallel.stages_per_worker` in the run file"));
    }
}
