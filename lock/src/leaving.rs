//! A guard that is gone: nobody believes in it any more, and its server is still to be told.

use std::sync::Arc;

use crate::call::Attempts;
use crate::error::Error;
use crate::hold::Hold;
use crate::process::{Process, Untold};

/// Dropped before the server was told, its release is owed.
#[derive(Debug)]
pub(crate) struct Leaving {
    process: Arc<Process>,
    hold: Arc<Hold>,
    untold: Option<Untold>,
}

impl Leaving {
    /// From now on the guard is gone. An error if its hold was over before.
    pub(crate) fn begin(
        process: &Arc<Process>,
        hold: &Arc<Hold>,
        watched: bool,
    ) -> Result<Self, Error> {
        let untold = Some(process.begin_to_leave(hold, watched)?);
        Ok(Self { process: Arc::clone(process), hold: Arc::clone(hold), untold })
    }

    /// Tells the server in one attempt, and says how it went. What it has not acknowledged then is finished in the
    /// background.
    pub(crate) fn tell_once(&mut self) -> Result<(), Error> {
        let patience = self.process.settings.command_timeout;
        // Taken out only afterwards: if telling panics, the release is owed.
        let told = self.untold.as_ref().map_or(Ok(()), |untold| {
            self.process.tell(&self.hold, untold, patience, Attempts::One)
        });
        self.untold = None;
        told
    }

    /// Whose guard it was.
    pub(crate) fn process(&self) -> Arc<Process> {
        Arc::clone(&self.process)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(untold) = self.untold.take()
            && self.process.is_current()
        {
            self.process.tell_later(&self.hold, &untold);
        }
    }
}
