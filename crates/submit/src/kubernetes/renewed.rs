//! [`RenewedConnection`]: a connection whose credentials are read again when the server does not accept them any more: tokens with
//! a short life are renewed in their files.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::Connection;
use super::api::ApiFailure;
use crate::error::SubmitError;

/// The status code of a server that does not accept the credentials.
const UNAUTHORIZED: u16 = 401;

/// Opens a connection with the credentials that there are now.
type ConnectionOpener = Box<dyn Fn() -> Result<Connection, SubmitError>>;

/// A connection, and how to open it again.
pub(crate) struct RenewedConnection {
    open: ConnectionOpener,
    current: RefCell<Rc<Connection>>,
    /// Whether the credentials were read again since the server has accepted some.
    is_renewed: Cell<bool>,
}

impl RenewedConnection {
    /// Keeps an open connection.
    pub(crate) fn new(current: Connection, open: ConnectionOpener) -> Self {
        Self {
            open,
            current: RefCell::new(Rc::new(current)),
            is_renewed: Cell::new(false),
        }
    }

    /// Sends a request, and once more with new credentials if the server does not accept those that it has.
    pub(crate) fn request<T>(
        &self,
        mut send: impl FnMut(&Connection) -> Result<T, ApiFailure>,
    ) -> Result<T, ApiFailure> {
        let mut send = || {
            let connection = Rc::clone(&self.current.borrow());
            let answer = send(&connection);
            let is_refused = matches!(
                &answer,
                Err(ApiFailure::Status {
                    code: UNAUTHORIZED,
                    ..
                })
            );
            let was_renewed = self.is_renewed.replace(is_refused);
            (answer, is_refused && !was_renewed)
        };
        let (answer, is_new_refusal) = send();
        if !is_new_refusal {
            return answer;
        }
        match (self.open)() {
            Ok(renewed) => {
                *self.current.borrow_mut() = Rc::new(renewed);
                send().0
            }
            Err(_) => answer,
        }
    }
}
