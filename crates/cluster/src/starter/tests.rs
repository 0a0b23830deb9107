//! Every environment of the table, with variables as the launchers and platforms set them, and contradictions among them.

use super::*;

type Variables = &'static [(&'static str, &'static str)];

fn decide(variables: &[(&str, &str)]) -> Result<StartDecision, String> {
    let decision = StartDecision::of(&|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).into())
    });
    decision.map_err(|error| error.to_string())
}

/// The result: rank, number of workers, address of rank 0, job. `PORT` is a derived port.
struct Expected(u32, u32, &'static str, &'static str);

fn check(name: &str, variables: &[(&str, &str)], expected: &Expected) {
    let decision = decide(variables).unwrap_or_else(|problem| panic!("{name}: {problem}"));
    let rank = decision.rank.clone();
    let rank = rank.unwrap_or_else(|| panic!("{name}: {}", decision.explain()));
    assert_eq!(
        (rank.rank.0, rank.world_size.get()),
        (expected.0, expected.1),
        "{name}"
    );
    let address = match expected.2.strip_suffix("PORT") {
        Some(host) => {
            let port = rank.rendezvous.strip_prefix(host).expect(name);
            let port: u16 = port.parse().expect(name);
            assert!((20_000..32_000).contains(&port), "{name}: {port}");
            rank.rendezvous.as_str()
        }
        None => expected.2,
    };
    assert_eq!(
        (rank.rendezvous.as_str(), rank.job.as_str()),
        (address, expected.3),
        "{name}"
    );
    assert!(
        decision.explain().starts_with("started by "),
        "{}",
        decision.explain()
    );
}

const OPEN_MPI: Variables = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    (
        "OMPI_MCA_orte_hnp_uri",
        "1418592256.0;tcp://192.0.2.2:52215;tcp6://[fd00::2]:39799",
    ),
    ("PMIX_NAMESPACE", "1418592257"),
    ("PMIX_RANK", "1"),
];
const SRUN: Variables = &[
    ("SLURM_JOB_ID", "17"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "gpu[03-04]"),
    ("SLURM_PROCID", "3"),
    ("SLURM_LOCALID", "1"),
];
const TORCHRUN: Variables = &[
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "29500"),
];

/// The environments by name, with the results.
const ENVIRONMENTS: &[(&str, Variables, Expected)] = &[
    (
        "Open MPI on one host",
        OPEN_MPI,
        Expected(1, 2, "127.0.0.1:PORT", "1418592257"),
    ),
    (
        "Open MPI on several hosts",
        &[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            (
                "OMPI_MCA_orte_hnp_uri",
                "1.0;tcp://192.0.2.2,10.0.0.1:52215",
            ),
            ("OMPI_MCA_ess_base_jobid", "7"),
        ],
        Expected(3, 4, "192.0.2.2:PORT", "7"),
    ),
    (
        "MPICH on one host",
        &[
            ("PMI_RANK", "0"),
            ("PMI_SIZE", "3"),
            ("PMI_FD", "8"),
            ("MPI_LOCALRANKID", "0"),
            ("MPI_LOCALNRANKS", "3"),
            (LAUNCHER_PROCESS, "4711"),
        ],
        Expected(0, 3, "127.0.0.1:PORT", "job"),
    ),
    (
        "Intel MPI on one host",
        &[
            ("I_MPI_MPIRUN", "mpirun"),
            ("PMI_RANK", "1"),
            ("PMI_SIZE", "2"),
            ("PMI_FD", "8"),
            ("MPI_LOCALRANKID", "1"),
            ("MPI_LOCALNRANKS", "2"),
            (LAUNCHER_PROCESS, "4711"),
        ],
        Expected(1, 2, "127.0.0.1:PORT", "job"),
    ),
    (
        "Intel MPI on several hosts",
        &[
            ("PMI_RANK", "2"),
            ("PMI_SIZE", "4"),
            ("MPI_LOCALRANKID", "0"),
            ("MPI_LOCALNRANKS", "2"),
            ("RONDE_RENDEZVOUS", "node1:4711"),
        ],
        Expected(2, 4, "node1:4711", "job"),
    ),
    (
        "srun on several nodes",
        SRUN,
        Expected(3, 4, "gpu03:PORT", "17"),
    ),
    (
        "srun on one node",
        &[
            ("SLURM_JOB_ID", "17"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "1"),
            ("SLURM_STEP_NODELIST", "n1"),
            ("SLURM_PROCID", "1"),
        ],
        Expected(1, 2, "127.0.0.1:PORT", "17"),
    ),
    (
        "srun with variables of a script",
        &[
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_PROCID", "1"),
            ("MASTER_ADDR", "head"),
            ("MASTER_PORT", "6000"),
            ("WORLD_SIZE", "2"),
        ],
        Expected(1, 2, "head:6000", "job"),
    ),
    (
        "torchrun on several hosts",
        TORCHRUN,
        Expected(5, 8, "node1:PORT", "none"),
    ),
    (
        "a script with the variables of torch",
        &[
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("MASTER_PORT", "29500"),
        ],
        Expected(1, 2, "10.0.0.7:29500", "job"),
    ),
    (
        "a PyTorchJob of Kubeflow",
        &[
            ("PET_NNODES", "3"),
            ("PET_NODE_RANK", "2"),
            ("PET_MASTER_ADDR", "run-master-0"),
            ("PET_MASTER_PORT", "23456"),
            ("RANK", "2"),
            ("WORLD_SIZE", "3"),
            ("MASTER_ADDR", "run-master-0"),
            ("MASTER_PORT", "23456"),
        ],
        Expected(2, 3, "run-master-0:23456", "job"),
    ),
    (
        "a TrainJob of Kubeflow",
        &[
            ("PET_NNODES", "2"),
            ("PET_NPROC_PER_NODE", "auto"),
            ("PET_NODE_RANK", "1"),
            ("PET_MASTER_ADDR", "run-node-0-0.run"),
            ("PET_MASTER_PORT", "29400"),
        ],
        Expected(1, 2, "run-node-0-0.run:29400", "job"),
    ),
    (
        "TF_CONFIG of a worker",
        &[(
            "TF_CONFIG",
            r#"{"cluster":{"chief":["c:2222"],"ps":["p:1"],"worker":["w0:2222","w1:2222"]},"task":{"type":"worker","index":1}}"#,
        )],
        Expected(2, 3, "c:2222", "job"),
    ),
    (
        "TF_CONFIG of the chief",
        &[(
            "TF_CONFIG",
            r#"{"cluster":{"master":["m:1"],"worker":["w0:2222"]},"task":{"type":"master","index":0},"environment":"cloud"}"#,
        )],
        Expected(0, 2, "m:1", "job"),
    ),
    (
        "TF_CONFIG of Paperspace",
        &[
            (
                "TF_CONFIG",
                "eyJjbHVzdGVyIjp7IndvcmtlciI6WyJhOjEiLCJiOjEiXX0sInRhc2siOnsidHlwZSI6IndvcmtlciIsImluZGV4IjoxfX0=",
            ),
            ("PAPERSPACE_METRIC_WORKLOAD_ID", "w1"),
        ],
        Expected(1, 2, "a:1", "w1"),
    ),
    (
        "Paperspace with variables of torch",
        &[
            ("PAPERSPACE_METRIC_WORKLOAD_ID", "w1"),
            ("PAPERSPACE_FQDN", "w1.example.com"),
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.6"),
            ("MASTER_PORT", "29500"),
        ],
        Expected(1, 2, "10.0.0.6:29500", "w1"),
    ),
    (
        "SageMaker with its toolkit",
        &[
            ("SM_HOSTS", r#"["algo-1","algo-2"]"#),
            ("SM_CURRENT_HOST", "algo-2"),
            ("TRAINING_JOB_NAME", "run-7"),
        ],
        Expected(1, 2, "algo-1:PORT", "run-7"),
    ),
    (
        "SageMaker without its toolkit",
        &[
            ("TRAINING_JOB_NAME", "run-7"),
            (
                "/opt/ml/input/config/resourceconfig.json",
                r#"{"current_host":"algo-3","hosts":["algo-1","algo-2","algo-3"],"network_interface_name":"eth0"}"#,
            ),
        ],
        Expected(2, 3, "algo-1:PORT", "run-7"),
    ),
    (
        "Azure ML with its distribution for PyTorch",
        &[
            ("AZUREML_RUN_ID", "calm_sky_1"),
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("NODE_RANK", "1"),
            ("MASTER_ADDR", "10.0.0.4"),
            ("MASTER_PORT", "6105"),
        ],
        Expected(1, 2, "10.0.0.4:6105", "calm_sky_1"),
    ),
    (
        "Azure ML with its distribution for MPI",
        &[
            ("AZUREML_RUN_ID", "calm_sky_1"),
            ("AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ],
        Expected(1, 2, "10.0.0.4:PORT", "calm_sky_1"),
    ),
    (
        "Ray Train",
        &[
            ("RAY_JOB_ID", "01000000"),
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("NODE_RANK", "0"),
            ("MASTER_ADDR", "10.0.0.9"),
            ("MASTER_PORT", "41234"),
        ],
        Expected(0, 2, "127.0.0.1:41234", "01000000"),
    ),
    (
        "a barrier task of Spark",
        &[
            ("SPARK_ENV_LOADED", "1"),
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "10.0.0.8"),
            ("MASTER_PORT", "50001"),
        ],
        Expected(3, 4, "10.0.0.8:50001", "job"),
    ),
    (
        "a person",
        &[
            ("RONDE_RENDEZVOUS", "[::1]:80"),
            ("RONDE_RANK", "0"),
            ("RONDE_WORLD_SIZE", "1"),
            ("RONDE_JOB", "mine"),
        ],
        Expected(0, 1, "[::1]:80", "mine"),
    ),
];

#[test]
fn every_launcher_and_platform_is_understood() {
    for (name, variables, expected) in ENVIRONMENTS {
        check(name, variables, expected);
    }
}

#[test]
fn all_ranks_of_a_job_derive_the_same_port_and_another_job_another_one() {
    let port = |rank: &'static str, job: &'static str| {
        let mut variables = OPEN_MPI.to_vec();
        variables.retain(|(name, _)| !["OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"].contains(name));
        variables.extend([("OMPI_COMM_WORLD_RANK", rank), ("PMIX_NAMESPACE", job)]);
        decide(&variables).unwrap().rank.unwrap().rendezvous
    };
    assert_eq!(port("0", "5"), port("1", "5"));
    assert_ne!(port("0", "5"), port("0", "6"));
}

#[test]
fn the_address_of_rank_0_is_exchanged_where_no_variable_has_it() {
    let mpich = [
        ("PMI_RANK", "2"),
        ("PMI_SIZE", "4"),
        ("MPI_LOCALNRANKS", "2"),
        ("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "node2"),
    ];
    let problem = decide(&mpich).unwrap_err();
    assert!(
        problem.contains("no variable names the host of rank 0"),
        "{problem}"
    );
    let exchanging = [&mpich[..], &[("PMI_FD", "8")]].concat();
    let decision = decide(&exchanging).unwrap();
    assert!(decision.exchanges);
    let own = decision.rank.clone().unwrap().rendezvous;
    assert!(own.starts_with("node2:"), "{own}");
    let explained = decision.explain();
    assert!(explained.contains("exchanged by PMI"), "{explained}");
    for more in [
        ("RONDE_RENDEZVOUS", "node1:4711"),
        ("MASTER_ADDR", "node1"),
        ("MPI_LOCALNRANKS", "4"),
    ] {
        let known = [&[more], &exchanging[..]].concat();
        assert!(!decide(&known).unwrap().exchanges, "{more:?}");
    }
}

#[test]
fn the_closest_launcher_has_assigned_the_rank() {
    // One torchrun on each of two nodes.
    let nested = [
        TORCHRUN,
        &[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")],
    ]
    .concat();
    check(
        "torchrun in srun",
        &nested,
        &Expected(5, 8, "node1:PORT", "none"),
    );
    let explained = decide(&nested).unwrap().explain();
    for words in [
        "started by torchrun: rank 5 of 8",
        "also present: srun of Slurm (SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2); it is not used",
    ] {
        assert!(explained.contains(words), "{words:?} in\n{explained}");
    }
    let nested = [OPEN_MPI, SRUN].concat();
    check(
        "mpirun in srun",
        &nested,
        &Expected(1, 2, "127.0.0.1:PORT", "1418592257"),
    );
    let nested = [TORCHRUN, &[("AZUREML_RUN_ID", "a")]].concat();
    check(
        "torchrun in Azure ML",
        &nested,
        &Expected(5, 8, "node1:PORT", "none"),
    );
}

#[test]
fn a_single_process_leaves_the_workers_to_ronde() {
    for (variables, words) in [
        (&[][..], "not started by another launcher"),
        (
            &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")],
            "as its only process",
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")],
            "as its only process",
        ),
        (
            &[("SM_HOSTS", "[\"algo-1\"]"), ("SM_CURRENT_HOST", "algo-1")],
            "as its only process",
        ),
        (
            &[("RAY_JOB_ID", "1")],
            "a worker of Ray: its variables name no rank",
        ),
        (&[("TF_CONFIG", "{}")], "name no rank"),
        // A batch script of Slurm, not a task of srun.
        (
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")],
            "not started by another launcher",
        ),
    ] {
        let decision = decide(variables).unwrap();
        assert_eq!(decision.rank, None, "{variables:?}");
        let explained = decision.explain();
        assert!(explained.contains(words), "{words:?} in\n{explained}");
    }
}

/// Variables with a mistake, and the message.
const MISTAKES: &[(Variables, &str)] = &[
    (
        &[("RANK", "1")],
        "RANK is set but WORLD_SIZE, a number of workers, is not",
    ),
    (
        &[("RANK", "2"), ("WORLD_SIZE", "2")],
        "RANK=2 does not fit WORLD_SIZE=2",
    ),
    (
        &[("RANK", "one"), ("WORLD_SIZE", "2")],
        "RANK=one is not a rank",
    ),
    (
        &[
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "x"),
        ],
        "MASTER_PORT=x is not a port",
    ),
    (
        &[("PET_NNODES", "1:3"), ("PET_NODE_RANK", "0")],
        "PET_NNODES=1:3 is not a number",
    ),
    (
        &[("RANK", "1"), ("WORLD_SIZE", "2")],
        "no variable names the host of rank 0",
    ),
    (
        &[("SM_HOSTS", "[\"a\"]"), ("SM_CURRENT_HOST", "b")],
        "SM_HOSTS does not name `b`",
    ),
    (&[("SM_HOSTS", "a,b")], "SM_HOSTS is not valid JSON"),
    (
        &[("TF_CONFIG", "nonsense!")],
        "TF_CONFIG is neither JSON nor base64",
    ),
    (
        &[(
            "TF_CONFIG",
            r#"{"cluster":{"worker":["a:1"]},"task":{"type":"ps","index":0}}"#,
        )],
        "TF_CONFIG has the role `ps`",
    ),
    (
        &[(
            "TF_CONFIG",
            r#"{"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":1}}"#,
        )],
        "TF_CONFIG has no address of worker 1",
    ),
    (
        &[("RONDE_RENDEZVOUS", "node1:4711")],
        "RONDE_RENDEZVOUS is set but RONDE_RANK",
    ),
    (
        &[("RONDE_STARTED_BY", "lsf")],
        "invalid RONDE_STARTED_BY `lsf`",
    ),
    (
        &[("RONDE_STARTED_BY", "slurm")],
        "none of its variables is set",
    ),
];

#[test]
fn contradictions_are_errors_that_name_the_variables() {
    let with = |more: &[(&'static str, &'static str)]| [SRUN, more].concat();
    let cases = [
        (
            with(&[("RANK", "0"), ("WORLD_SIZE", "2")]),
            "two values for the number of workers: SLURM_STEP_NUM_TASKS=4 (srun of Slurm) and WORLD_SIZE=2",
        ),
        (
            with(&[("RANK", "0"), ("WORLD_SIZE", "4")]),
            "the rank of this process: SLURM_PROCID=3 (srun of Slurm) and RANK=0",
        ),
        (
            with(&[("RONDE_RANK", "1"), ("RONDE_WORLD_SIZE", "4")]),
            "RONDE_RANK=1 (a script with variables of ronde) and SLURM_PROCID=3",
        ),
        (
            [OPEN_MPI, &[("PMI_RANK", "0"), ("PMI_SIZE", "2")]].concat(),
            "OMPI_COMM_WORLD_RANK=1 (mpirun of Open MPI) and PMI_RANK=0",
        ),
        (
            vec![
                ("SM_HOSTS", "[\"a\",\"b\",\"c\"]"),
                ("SM_CURRENT_HOST", "b"),
                ("RANK", "1"),
                ("WORLD_SIZE", "2"),
            ],
            "SM_HOSTS=3 (a training job of SageMaker) and WORLD_SIZE=2",
        ),
    ];
    for (variables, words) in cases {
        refuses(&variables, words);
    }
}

#[test]
fn mistakes_are_errors_that_name_the_variable() {
    for (variables, words) in MISTAKES {
        refuses(variables, words);
    }
}

fn refuses(variables: &[(&str, &str)], words: &str) {
    let problem = decide(variables).unwrap_err();
    assert!(problem.contains(words), "{words:?} in\n{problem}");
    assert!(problem.contains("\n  help: "), "{problem}");
}

#[test]
fn the_user_decides_between_contradicting_starters() {
    let both = [
        SRUN,
        &[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "h"),
            ("MASTER_PORT", "7"),
        ],
    ];
    let with = |name: &'static str| [both.concat(), vec![("RONDE_STARTED_BY", name)]].concat();
    check("torch", &with("torch"), &Expected(0, 2, "h:7", "job"));
    check("slurm", &with("slurm"), &Expected(3, 4, "h:7", "17"));
    assert_eq!(decide(&with("none")).unwrap().rank, None);
}

#[test]
fn the_launcher_of_this_process_is_an_ancestor() {
    // No process has the variable, so the parent is the launcher.
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
    let found = launcher_process("RONDE_A_VARIABLE_THAT_NO_PROCESS_HAS");
    assert_eq!(found, u32::try_from(parent).ok());
}
