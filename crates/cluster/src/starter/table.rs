//! The table of the launchers and platforms that start processes: which of their variables has which field. It is the only
//! place that knows these names.

use super::reading::Reading::{
    self, ClusterHost, ClusterIndex, ClusterPort, ClusterSize, FirstNode, FirstOf, HostOf,
    HostOfUri, IndexIn, LengthOf, PortOf, SizeOnOneNode, Value,
};
use crate::variables::{
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RANK, RONDE_JOB, RONDE_RANK,
    RONDE_WORLD_SIZE, WORLD_SIZE,
};

/// The address of rank 0 of a job whose processes another launcher starts, `host:port`. It replaces the address
/// that the launcher's own variables have.
pub const RONDE_RENDEZVOUS: &str = "RONDE_RENDEZVOUS";
/// The starter whose variables count where several contradict each other, by its short name, or `none`: no other launcher
/// has started this process.
pub const RONDE_STARTED_BY: &str = "RONDE_STARTED_BY";
/// The number of the inherited socket to the process manager of an implementation of MPI.
pub const PMI_FD: &str = "PMI_FD";
/// The file with the members of a training job in a container on SageMaker.
const SAGEMAKER_FILE: &str = "/opt/ml/input/config/resourceconfig.json";

/// How close to this process a starter is. One launcher may start another one, such as srun torchrun, and the closest one
/// has assigned the rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Nesting {
    /// Variables of ronde, set by a person or a script.
    Explicit,
    /// torchrun.
    Inner,
    /// An implementation of MPI.
    Mpi,
    /// A step of a batch system.
    Step,
    /// The platform that has started the container.
    Platform,
}

/// A launcher or platform, and the readings of its variables in the order of preference.
#[derive(Debug)]
pub(super) struct Starter {
    /// The short name, for [`RONDE_STARTED_BY`].
    pub(super) name: &'static str,
    /// The name for messages.
    pub(super) title: &'static str,
    pub(super) nesting: Nesting,
    /// Lists of variables; the starter is present when all variables of one list are set.
    pub(super) markers: &'static [&'static [&'static str]],
    pub(super) rank: &'static [Reading],
    pub(super) world_size: &'static [Reading],
    pub(super) local_rank: &'static [Reading],
    pub(super) local_world_size: &'static [Reading],
    pub(super) host: &'static [Reading],
    /// The name of the host of this process, for starters whose variables name no host of rank 0.
    pub(super) own_host: &'static [Reading],
    pub(super) port: &'static [Reading],
    pub(super) job: &'static [Reading],
    /// Variables that distinguish this job from others on the same host, for the choice of a port.
    pub(super) tags: &'static [&'static str],
}

/// Values of a row that most rows do not have.
const NOTHING: Starter = Starter {
    name: "",
    title: "",
    nesting: Nesting::Platform,
    markers: &[],
    rank: &[],
    world_size: &[],
    local_rank: &[],
    local_world_size: &[],
    host: &[],
    own_host: &[],
    port: &[],
    job: &[],
    tags: &[],
};

/// The row of the variables that torch reads. Platforms and scripts set them without a launcher.
pub(super) const TORCH: &str = "torch";

/// A platform that sets the variables of torch for each process.
const TORCH_VARIABLES: Starter = Starter {
    rank: &[Value(RANK)],
    world_size: &[Value(WORLD_SIZE)],
    local_rank: &[Value(LOCAL_RANK)],
    local_world_size: &[Value(LOCAL_WORLD_SIZE)],
    host: &[Value(MASTER_ADDR)],
    port: &[Value(MASTER_PORT)],
    ..NOTHING
};

/// All starters, the closest ones first.
pub(super) const STARTERS: &[Starter] = &[
    Starter {
        name: "ronde",
        title: "a script with variables of ronde",
        nesting: Nesting::Explicit,
        markers: &[&[RONDE_RENDEZVOUS], &[RONDE_RANK, RONDE_WORLD_SIZE]],
        rank: &[Value(RONDE_RANK)],
        world_size: &[Value(RONDE_WORLD_SIZE)],
        host: &[HostOf(RONDE_RENDEZVOUS)],
        port: &[PortOf(RONDE_RENDEZVOUS)],
        job: &[Value(RONDE_JOB)],
        ..NOTHING
    },
    Starter {
        name: "torchrun",
        title: "torchrun",
        nesting: Nesting::Inner,
        markers: &[&["TORCHELASTIC_RUN_ID", RANK, WORLD_SIZE]],
        // The agent of torchrun may listen at MASTER_PORT itself.
        port: &[],
        job: &[Value("TORCHELASTIC_RUN_ID")],
        tags: &[
            "TORCHELASTIC_RUN_ID",
            MASTER_PORT,
            "TORCHELASTIC_RESTART_COUNT",
        ],
        ..TORCH_VARIABLES
    },
    Starter {
        name: "openmpi",
        title: "mpirun of Open MPI",
        nesting: Nesting::Mpi,
        markers: &[&["OMPI_COMM_WORLD_RANK"], &["OMPI_COMM_WORLD_SIZE"]],
        rank: &[Value("OMPI_COMM_WORLD_RANK")],
        world_size: &[Value("OMPI_COMM_WORLD_SIZE")],
        local_rank: &[Value("OMPI_COMM_WORLD_LOCAL_RANK")],
        local_world_size: &[Value("OMPI_COMM_WORLD_LOCAL_SIZE")],
        // mpirun starts rank 0 on its own host unless its host file specifies another one.
        host: &[HostOfUri("OMPI_MCA_orte_hnp_uri")],
        job: &[Value("PMIX_NAMESPACE"), Value("OMPI_MCA_ess_base_jobid")],
        tags: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        ..NOTHING
    },
    Starter {
        name: "pmi",
        title: "mpiexec of MPICH or Intel MPI (PMI)",
        nesting: Nesting::Mpi,
        markers: &[&["PMI_RANK"], &["PMI_SIZE"]],
        rank: &[Value("PMI_RANK")],
        world_size: &[Value("PMI_SIZE")],
        local_rank: &[Value("MPI_LOCALRANKID")],
        local_world_size: &[Value("MPI_LOCALNRANKS")],
        own_host: &[Value("MPIR_CVAR_CH3_INTERFACE_HOSTNAME")],
        job: &[Value("PMI_JOBID")],
        tags: &["PMI_JOBID", "PMI_PORT", super::LAUNCHER_PROCESS],
        ..NOTHING
    },
    Starter {
        name: "slurm",
        title: "srun of Slurm",
        nesting: Nesting::Step,
        markers: &[&["SLURM_STEP_NUM_TASKS", "SLURM_PROCID"]],
        rank: &[Value("SLURM_PROCID")],
        world_size: &[Value("SLURM_STEP_NUM_TASKS")],
        local_rank: &[Value("SLURM_LOCALID")],
        local_world_size: &[SizeOnOneNode {
            nodes: "SLURM_STEP_NUM_NODES",
            size: "SLURM_STEP_NUM_TASKS",
        }],
        host: &[FirstNode("SLURM_STEP_NODELIST")],
        job: &[Value("SLURM_JOB_ID")],
        tags: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        ..NOTHING
    },
    Starter {
        name: "kubeflow",
        title: "a job of Kubeflow",
        markers: &[&["PET_NNODES"], &["PET_NODE_RANK"]],
        rank: &[Value("PET_NODE_RANK")],
        world_size: &[Value("PET_NNODES")],
        host: &[Value("PET_MASTER_ADDR")],
        port: &[Value("PET_MASTER_PORT")],
        ..NOTHING
    },
    Starter {
        name: "tf_config",
        title: "TF_CONFIG (TensorFlow, Kubeflow, Vertex AI, Paperspace)",
        markers: &[&["TF_CONFIG"]],
        rank: &[ClusterIndex("TF_CONFIG")],
        world_size: &[ClusterSize("TF_CONFIG")],
        host: &[ClusterHost("TF_CONFIG")],
        port: &[ClusterPort("TF_CONFIG")],
        ..NOTHING
    },
    Starter {
        name: "sagemaker",
        title: "a training job of SageMaker",
        markers: &[&["SM_HOSTS"], &["SM_CURRENT_HOST"], &["TRAINING_JOB_NAME"]],
        rank: &[
            IndexIn {
                list: ("SM_HOSTS", ""),
                item: ("SM_CURRENT_HOST", ""),
            },
            IndexIn {
                list: (SAGEMAKER_FILE, "hosts"),
                item: (SAGEMAKER_FILE, "current_host"),
            },
        ],
        world_size: &[LengthOf("SM_HOSTS", ""), LengthOf(SAGEMAKER_FILE, "hosts")],
        host: &[FirstOf("SM_HOSTS", ""), FirstOf(SAGEMAKER_FILE, "hosts")],
        job: &[Value("TRAINING_JOB_NAME")],
        tags: &["TRAINING_JOB_NAME", "SM_HOSTS"],
        ..NOTHING
    },
    Starter {
        name: "azureml",
        title: "a job of Azure ML",
        markers: &[&["AZUREML_RUN_ID"]],
        host: &[
            Value(MASTER_ADDR),
            HostOf("AZ_BATCH_MASTER_NODE"),
            Value("AZ_BATCHAI_MPI_MASTER_NODE"),
        ],
        job: &[Value("AZUREML_RUN_ID")],
        tags: &["AZUREML_RUN_ID"],
        ..TORCH_VARIABLES
    },
    Starter {
        name: "ray",
        title: "a worker of Ray",
        markers: &[&["RAY_JOB_ID"], &["RAY_RAYLET_PID"]],
        job: &[Value("RAY_JOB_ID")],
        ..TORCH_VARIABLES
    },
    Starter {
        name: "spark",
        title: "a barrier task of Spark",
        markers: &[&["SPARK_ENV_LOADED"], &["PYTHON_WORKER_FACTORY_SECRET"]],
        ..TORCH_VARIABLES
    },
    Starter {
        name: "paperspace",
        title: "a workload of Paperspace Gradient",
        markers: &[&["PAPERSPACE_METRIC_WORKLOAD_ID"], &["PAPERSPACE_FQDN"]],
        job: &[Value("PAPERSPACE_METRIC_WORKLOAD_ID")],
        ..TORCH_VARIABLES
    },
    Starter {
        name: TORCH,
        title: "a script with variables of torch",
        markers: &[&[RANK], &[WORLD_SIZE], &[MASTER_ADDR]],
        ..TORCH_VARIABLES
    },
];

impl Starter {
    /// Returns whether its numbers are those of the variables of torch.
    pub(super) fn world_size_is_torchs(&self) -> bool {
        matches!(self.world_size, [Value(WORLD_SIZE)])
    }
}
