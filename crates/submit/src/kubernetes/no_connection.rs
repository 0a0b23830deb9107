//! [`NoConnection`]: the connection of a build without an HTTP client: it cannot be opened.

use std::io::Write;
use std::time::Duration;

use super::api::{ApiFailure, ChannelReceiver};
use super::{KubernetesAccess, KubernetesSettings};
use crate::error::SubmitError;

/// A connection that does not exist.
pub(crate) enum NoConnection {}

impl NoConnection {
    pub(super) fn open(
        _: &KubernetesSettings,
        _: &KubernetesAccess,
    ) -> Result<(Self, String, String), SubmitError> {
        Err(SubmitError::invalid(
            "cannot use a target of Kubernetes: this build has no HTTP client",
            "build ronde with `--features full`",
        ))
    }

    pub(crate) fn to(
        title: &str,
        _: &str,
        _: Option<String>,
        _: Option<String>,
    ) -> Result<Self, SubmitError> {
        Err(SubmitError::invalid(
            format!("cannot use {title}: this build has no HTTP client"),
            "build ronde with `--features full`",
        ))
    }

    pub(super) fn server(&self) -> &str {
        match *self {}
    }

    pub(crate) fn tail(&self, _: &str, _: Duration, _: &mut dyn Write) -> Result<(), ApiFailure> {
        match *self {}
    }

    pub(crate) fn send(
        &self,
        _: &str,
        _: &str,
        _: Option<(&str, Vec<u8>)>,
        _: Duration,
    ) -> Result<(u16, Vec<u8>), String> {
        match *self {}
    }

    pub(super) fn stream(&self, _: &str, _: Duration, _: &mut dyn Write) -> Result<(), ApiFailure> {
        match *self {}
    }

    pub(super) fn exec(
        &self,
        _: &str,
        _: Duration,
        _: &mut ChannelReceiver<'_>,
    ) -> Result<(), ApiFailure> {
        match *self {}
    }
}
