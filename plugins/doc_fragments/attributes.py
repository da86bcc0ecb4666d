# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module says about itself: C(extends_documentation_fragment: gpufleet.sglang.attributes)."""

from __future__ import annotations


class ModuleDocFragment:
    """Descriptions of the attributes; each module adds C(support) of check mode, diff mode and idempotent."""

    DOCUMENTATION = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/gpufleet.sglang.sglang) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - gpufleet.sglang.sglang
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
  diff_mode:
    description: Returns details on what has changed (or possibly needs changing in C(check_mode)), when in diff mode.
  idempotent:
    description: When run twice in a row outside check mode with the same arguments, the second run changes nothing.
  platform:
    description: Target operating systems that the module runs on.
    support: full
    platforms: linux
"""
