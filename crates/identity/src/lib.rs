//! Membership of a job by certificates: its own certificate authority, its members' certificates,
//! TLS 1.3 with mutual authentication, and tokens for joining hosts.
//!
//! The launcher creates an [`Authority`] when a job begins, issues an [`Identity`] to every
//! [`Member`] and passes it on as PEM text. Certificates are never bought or renewed, and are not
//! needed after the job. This crate does not know the protocols that use the connections, and gets
//! the time as an argument.
//!
//! Servers for people use an [`AccessToken`] and a certificate of the user: [`https_server_config`].
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use ronde_core::Rank;
//! use ronde_identity::{Authority, Identity, Member, Validity};
//!
//! let day = Validity::from_now(SystemTime::now(), Duration::from_secs(86_400));
//! let authority = Authority::new("job-7", day)?;
//! let handed_out = authority.issue(&Member::Rank(Rank(3)), day)?.to_pem();
//! // In the worker:
//! let mine = Identity::from_pem("job-7", Member::Rank(Rank(3)), handed_out.expose())?;
//! let dialling = mine.client_config(b"my-protocol/1")?;
//! # drop(dialling);
//! # Ok::<(), ronde_identity::IdentityError>(())
//! ```

#![forbid(unsafe_code)]

mod access_token;
mod authority;
mod bundle;
mod error;
mod explain;
mod https;
mod identity;
mod member;
mod secret;
mod tls;
mod token;

pub use access_token::AccessToken;
pub use authority::{Authority, Validity};
pub use error::IdentityError;
pub use explain::explain;
pub use https::https_server_config;
pub use identity::Identity;
pub use member::Member;
pub use secret::SecretText;
pub use token::{Fingerprint, JoinToken};

/// The TLS implementation for whose connections the settings are made.
pub use rustls;
