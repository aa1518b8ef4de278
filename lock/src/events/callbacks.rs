//! The callbacks set by the user.

use std::fmt;
use std::sync::Arc;

use crate::events::report::{HeldLock, LostLock, Report, Warning};

/// A closure of the user, called with each report of one kind.
type Callback<T> = Arc<dyn Fn(&T) + Send + Sync>;

/// At most one callback for each kind of report.
#[derive(Clone, Default)]
pub(crate) struct Callbacks {
    pub(crate) lost: Option<Callback<LostLock>>,
    pub(crate) long_hold: Option<Callback<HeldLock>>,
    pub(crate) warning: Option<Callback<Warning>>,
}

impl Callbacks {
    /// Calls the callback for this kind of report, if set.
    pub(crate) fn call(&self, report: &Report) {
        match report {
            Report::Lost(lost) => call(self.lost.as_ref(), lost),
            Report::LongHold(held) => call(self.long_hold.as_ref(), held),
            Report::Warning(warning) => call(self.warning.as_ref(), warning),
        }
    }
}

/// Calls `callback` with `report`, if there is a callback.
fn call<T>(callback: Option<&Callback<T>>, report: &T) {
    if let Some(callback) = callback {
        callback(report);
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Callbacks")
            .field("lost", &self.lost.is_some())
            .field("long_hold", &self.long_hold.is_some())
            .field("warning", &self.warning.is_some())
            .finish()
    }
}
