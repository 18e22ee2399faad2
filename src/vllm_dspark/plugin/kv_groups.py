"""A separate KV cache group for the draft, where --additional-config asks for one."""

from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_planning import DefaultKVCacheConfigBuilder, get_kv_cache_groups

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec


class SeparateDraftGroup(DefaultKVCacheConfigBuilder):
    """Puts draft layers into groups of their own.

    A block id then belongs to target or draft, so a context takes twice as many ids; and since
    the arrays of both groups have every id, a pool of the same bytes holds half as many tokens as
    the merged group. A prefix is reused only where both groups still have it.
    """

    def get_kv_cache_groups(
        self, vllm_config: "VllmConfig", kv_cache_spec: "dict[str, KVCacheSpec]"
    ) -> "list[KVCacheGroupSpec]":
        """Group target and draft layers apart."""
        draft = {name: spec for name, spec in kv_cache_spec.items() if spec.is_draft}
        target = {name: spec for name, spec in kv_cache_spec.items() if not spec.is_draft}
        groups = get_kv_cache_groups(vllm_config, target)
        return [*groups, *(get_kv_cache_groups(vllm_config, draft) if draft else [])]

    def _get_pool_bytes_per_block(
        self, vllm_config: "VllmConfig", kv_cache_groups: "list[KVCacheGroupSpec]"
    ) -> int:
        """Every layer of every group has an array with all block ids."""
        return sum(
            group.kv_cache_spec.page_size_bytes * len(group.layer_names)
            for group in kv_cache_groups
        )
