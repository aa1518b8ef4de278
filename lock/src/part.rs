//! A lock of any kind as a part of a multi-lock or a red lock: its plan and its owner, without the type of its guard.

use std::sync::Arc;
use std::time::Duration;

use hashed_wheel::Clock;

use crate::error::{Error, shortened};
use crate::grip::Grip;
use crate::kind::{Kind, Layout};
use crate::owner::Holder;
use crate::plan::{Plan, Wait};

/// A [`Lock`](crate::Lock) of any kind and with any guard, for [`MultiLock`](crate::MultiLock) and
/// [`RedLock`](crate::RedLock). Nothing else can be one.
///
/// ```
/// use wheellock::{AnyLock, Client, MultiLock};
///
/// let client = Client::in_memory();
/// let (order, report) = (client.lock("orders:42"), client.fenced_lock("report"));
/// let locks: [&dyn AnyLock; 2] = [&order, &report];
/// let _guard = MultiLock::new(&locks).lock()?;
/// # Ok::<(), wheellock::Error>(())
/// ```
pub trait AnyLock: AsPart {}

mod sealed {
    /// What only this crate can do.
    pub trait AsPart {
        #[doc(hidden)]
        fn as_part(&self) -> super::Part;
    }
}

pub(crate) use sealed::AsPart;

/// One of several locks. Public only for a sealed trait: nobody outside can name it.
#[derive(Clone, Debug)]
pub struct Part {
    pub(crate) plan: Plan,
    /// `None`: the calling thread.
    pub(crate) owner: Option<Holder>,
    /// Where it is, as far as is known.
    pub(crate) server: String,
}

impl Part {
    pub(crate) fn new(plan: Plan, owner: Option<Holder>) -> Self {
        let server = plan.server();
        Self { plan, owner, server }
    }

    /// Who takes it, when the calling thread does.
    pub(crate) fn holder(&self) -> Holder {
        self.owner.clone().unwrap_or_else(Holder::current_thread)
    }

    pub(crate) fn take(&self, wait: Wait<'_>) -> Result<Option<Grip>, Error> {
        self.plan.carry_out(&self.holder(), wait)
    }

    /// An error if it can never be taken as it is.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.plan.name()?;
        self.plan.lease()?;
        self.plan.process()?;
        Ok(())
    }

    pub(crate) fn clock(&self) -> Result<Arc<dyn Clock>, Error> {
        Ok(Arc::clone(&self.plan.process()?.clock))
    }

    /// How long its client keeps trying while the server gives no answer.
    pub(crate) fn patience(&self) -> Result<Duration, Error> {
        Ok(self.plan.process()?.settings.patience())
    }

    pub(crate) fn key(&self) -> String {
        self.plan.name().map(|name| name.as_str().to_owned()).unwrap_or_default()
    }

    /// The name for messages.
    pub(crate) fn shown(&self) -> String {
        shortened(&self.key())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.plan.held_by(&self.holder()).is_some()
    }

    /// Where it is, whatever the database: those of one server are lost together.
    pub(crate) fn machine(&self) -> &str {
        self.server.rsplit_once('/').map_or(&self.server, |(machine, _database)| machine)
    }

    /// Whether they share one key of one server.
    pub(crate) fn is_of_the_key_of(&self, other: &Self) -> bool {
        self.server == other.server && self.key() == other.key()
    }

    /// Whether taking both is taking one twice.
    pub(crate) fn is_the_same_as(&self, other: &Self) -> bool {
        self.is_of_the_key_of(other)
            && self.plan.kind == other.plan.kind
            && self.owner == other.owner
            && self.plan.is_of_the_client_of(&other.plan)
    }

    /// Whether whoever takes both waits for himself.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        let readers = self.plan.kind == Kind::Read && other.plan.kind == Kind::Read;
        let one_holder = self.plan.is_of_the_client_of(&other.plan) && self.owner == other.owner;
        let layouts = [self.plan.kind.layout(), other.plan.kind.layout()];
        let nests = match layouts {
            [Layout::Writer, Layout::Reader] | [Layout::Reader, Layout::Writer] => true,
            [one, another] => one == another,
        };
        self.is_of_the_key_of(other) && !readers && !(one_holder && nests)
    }
}

/// All the names, for messages.
pub(crate) fn shown(parts: &[Part]) -> String {
    parts.iter().map(Part::shown).collect::<Vec<_>>().join(", ")
}
