//! The files of the lock crate that are fuzzed. They are private to it, so they are compiled here
//! once more. Each target imports the folders below at its root, where these files look for them.

#![expect(dead_code, reason = "a target uses some of the files, and of each a part")]

#[path = "../../../lock/src/error.rs"]
pub(crate) mod error;

#[path = "../../../lock/src/model"]
pub(crate) mod model {
    pub(crate) mod lease;
    pub(crate) mod settings;
    pub(crate) mod wait_mode;
}

#[path = "../../../lock/src/ops"]
pub(crate) mod ops {
    pub(crate) mod value;
}

#[path = "../../../lock/src/waits"]
pub(crate) mod waits {
    pub(crate) mod queue;
    pub(crate) mod yielding;
}

#[path = "../../../lock/src/store"]
pub(crate) mod store {
    pub(crate) mod server_id;

    pub(crate) mod redis {
        pub(crate) mod address {
            pub(crate) mod cluster_seeds;
            pub(crate) mod credentials;
            pub(crate) mod url;
        }

        pub(crate) mod cluster {
            pub(crate) mod slot_map;
            pub(crate) mod slots_reply;
        }

        pub(crate) mod resp {
            pub(crate) mod decode;
            pub(crate) mod hash_slot;
            pub(crate) mod redirect;
        }

        pub(crate) mod sentinel {
            pub(crate) mod report;
        }
    }
}
