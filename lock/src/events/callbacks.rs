//! The callbacks that the user has set.

use std::fmt;
use std::sync::Arc;

use crate::events::report::{HeldLock, LostLock, Report, Warning};

type Callback<T> = Arc<dyn Fn(&T) + Send + Sync>;

/// At most one callback for each kind of report.
#[derive(Clone, Default)]
pub(crate) struct Callbacks {
    lost: Option<Callback<LostLock>>,
    long_hold: Option<Callback<HeldLock>>,
    warning: Option<Callback<Warning>>,
}

impl Callbacks {
    pub(crate) fn set_on_lost(&mut self, callback: impl Fn(&LostLock) + Send + Sync + 'static) {
        self.lost = Some(Arc::new(callback));
    }

    pub(crate) fn set_on_long_hold(
        &mut self,
        callback: impl Fn(&HeldLock) + Send + Sync + 'static,
    ) {
        self.long_hold = Some(Arc::new(callback));
    }

    pub(crate) fn set_on_warning(&mut self, callback: impl Fn(&Warning) + Send + Sync + 'static) {
        self.warning = Some(Arc::new(callback));
    }

    pub(crate) fn wants_losses(&self) -> bool {
        self.lost.is_some()
    }

    pub(crate) fn wants_long_holds(&self) -> bool {
        self.long_hold.is_some()
    }

    pub(crate) fn wants_warnings(&self) -> bool {
        self.warning.is_some()
    }

    /// Calls the callback for this kind of report, if there is one.
    pub(crate) fn call(&self, report: &Report) {
        match report {
            Report::Lost(lost) => call(self.lost.as_ref(), lost),
            Report::LongHold(held) => call(self.long_hold.as_ref(), held),
            Report::Warning(warning) => call(self.warning.as_ref(), warning),
        }
    }
}

fn call<T>(callback: Option<&Callback<T>>, report: &T) {
    if let Some(callback) = callback {
        callback(report);
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Callbacks")
            .field("lost", &self.wants_losses())
            .field("long_hold", &self.wants_long_holds())
            .field("warning", &self.wants_warnings())
            .finish()
    }
}
