//! The node: `ws_io_connect` to `ws_io_address`.

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::time::Duration;

use super::{give, guard, optional, place};
use crate::error::{argument, Result};
use crate::node::{on_absence, Node};
use crate::registry::Registry;

static NODES: Registry<Node> = Registry::new("connection to a node");

/// The node of a handle.
pub(crate) fn node(handle: *const Node) -> Result<Arc<Node>> {
    NODES.get(handle)
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_connect(
    socket: *const c_char,
    token: *const c_char,
    timeout_ms: c_int,
    node: *mut *mut Node,
) -> c_int {
    guard(|| {
        let result = place(node, "node")?;
        *result = std::ptr::null_mut();
        let timeout = u64::try_from(timeout_ms)
            .map_err(|_| argument(format!("timeout_ms is {timeout_ms}")))?;
        let socket = optional(socket, "socket")?;
        let token = optional(token, "token")?;
        let found = Node::connect(socket, token, Duration::from_millis(timeout))?;
        *result = NODES.add(found);
        Ok(())
    })
}

/// See waystage_io.h. Files that are still open keep the connection.
#[no_mangle]
pub extern "C" fn ws_io_disconnect(node: *mut Node) {
    guard(|| NODES.remove(node).map(drop));
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_on_absence(revive: Option<extern "C" fn()>) -> c_int {
    guard(|| {
        on_absence(revive);
        Ok(())
    })
}

/// See waystage_io.h.
#[no_mangle]
pub extern "C" fn ws_io_address(handle: *mut Node, text: *mut c_char, capacity: usize) -> c_int {
    guard(|| give(&node(handle)?.address(), text, capacity))
}
