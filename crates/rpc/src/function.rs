//! [`RemoteFunction`], the name and types of a function, and [`FunctionRegistry`], the functions of a worker.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::FunctionError;
use crate::frame::FailureCode;
use crate::node::CallContext;
use crate::values::CallValues;

/// The name, version and types of a function that both sides know. Messages carry the name and the version, never code.
///
/// Arguments and results travel as JSON, so they are for short data; f32 values travel beside them as bytes. Raise the
/// version when the types or the meaning change: calls of another version are refused with both versions.
///
/// ```
/// use ronde_rpc::RemoteFunction;
/// const SCALE: RemoteFunction<f32, usize> = RemoteFunction::new("example.scale", 1);
/// assert_eq!(SCALE.name(), "example.scale");
/// ```
pub struct RemoteFunction<A, R> {
    name: &'static str,
    version: u32,
    types: PhantomData<fn(A) -> R>,
}

impl<A, R> RemoteFunction<A, R> {
    /// Names a function. Names that start with `ronde.` belong to this crate.
    #[must_use]
    pub const fn new(name: &'static str, version: u32) -> Self {
        Self {
            name,
            version,
            types: PhantomData,
        }
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the version.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }
}

impl<A, R> Clone for RemoteFunction<A, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, R> Copy for RemoteFunction<A, R> {}

/// The head of the result and its values, or why there is none.
pub(crate) type ErasedResult = Result<(Vec<u8>, CallValues), (FailureCode, String)>;

type ErasedFunction = dyn Fn(&CallContext, &[u8], CallValues) -> ErasedResult + Send + Sync;

/// A function of a registry.
#[derive(Clone)]
pub(crate) struct RegisteredFunction {
    version: u32,
    pub(crate) run: Arc<ErasedFunction>,
    /// It runs on the thread that received the call.
    pub(crate) is_immediate: bool,
}

/// The functions that other workers may call on this one.
#[derive(Clone, Default)]
pub struct FunctionRegistry(BTreeMap<&'static str, RegisteredFunction>);

/// The reason why a node does not have a function.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnknownFunction {
    #[error("it has no function of this name")]
    Name,
    #[error("it has version {version}")]
    Version { version: u32 },
}

impl FunctionRegistry {
    /// Returns a registry without functions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a function, which replaces an earlier one of the same name. It runs on one of the node's threads
    /// ([`RpcLimits::threads`](crate::RpcLimits::threads)) and may block and call other workers; a panic is reported to the caller as a
    /// failure.
    pub fn register<A, R, F>(&mut self, function: &RemoteFunction<A, R>, run: F)
    where
        A: DeserializeOwned + 'static,
        R: Serialize + 'static,
        F: Fn(&CallContext, A, CallValues) -> Result<(R, CallValues), FunctionError>
            + Send
            + Sync
            + 'static,
    {
        self.insert(function, run, false);
    }

    /// Registers a function that runs on the thread that receives calls, which saves the time to wake another thread.
    /// While it runs, this node receives nothing: it must return within microseconds, and must not call or wait.
    pub fn register_immediate<A, R, F>(&mut self, function: &RemoteFunction<A, R>, run: F)
    where
        A: DeserializeOwned + 'static,
        R: Serialize + 'static,
        F: Fn(&CallContext, A, CallValues) -> Result<(R, CallValues), FunctionError>
            + Send
            + Sync
            + 'static,
    {
        self.insert(function, run, true);
    }

    fn insert<A, R, F>(&mut self, function: &RemoteFunction<A, R>, run: F, is_immediate: bool)
    where
        A: DeserializeOwned + 'static,
        R: Serialize + 'static,
        F: Fn(&CallContext, A, CallValues) -> Result<(R, CallValues), FunctionError>
            + Send
            + Sync
            + 'static,
    {
        let erased = move |context: &CallContext, arguments: &[u8], values: CallValues| {
            let arguments: A = serde_json::from_slice(arguments)
                .map_err(|error| (FailureCode::Arguments, error.to_string()))?;
            let (result, values) = run(context, arguments, values)
                .map_err(|error| (FailureCode::FunctionFailed, error.to_string()))?;
            let head = serde_json::to_vec(&result).map_err(|error| {
                let text = format!("its result cannot be converted: {error}");
                (FailureCode::FunctionFailed, text)
            })?;
            Ok((head, values))
        };
        let registered = RegisteredFunction {
            version: function.version,
            run: Arc::new(erased),
            is_immediate,
        };
        self.0.insert(function.name, registered);
    }

    /// Returns the function of a name and version, or why there is none.
    pub(crate) fn find(
        &self,
        name: &str,
        version: u32,
    ) -> Result<&RegisteredFunction, UnknownFunction> {
        let Some(found) = self.0.get(name) else {
            return Err(UnknownFunction::Name);
        };
        if found.version == version {
            return Ok(found);
        }
        let version = found.version;
        Err(UnknownFunction::Version { version })
    }
}

impl std::fmt::Debug for FunctionRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}
