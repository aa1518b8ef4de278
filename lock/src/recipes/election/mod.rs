//! Leader elections among processes.

pub(crate) mod campaign;
pub(crate) mod changes;
pub(crate) mod election;
pub(crate) mod term;

pub use self::campaign::Campaign;
pub use self::changes::LeaderChanges;
pub use self::election::{Leader, LeaderElection};
pub use self::term::Term;
