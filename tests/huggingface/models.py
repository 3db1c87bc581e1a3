# SPDX-License-Identifier: Apache-2.0
"""Tiny pretrained models: config.json and safetensors files, written without a library.

Weights are arithmetic on the name of the tensor, exact in fp32, so that every program sees the same model."""
import json
import os
import struct
import zlib

VOCAB, HIDDEN, LAYERS, HEADS, FFN, CONTEXT = 64, 16, 2, 4, 40, 128
PROMPT = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(24)]
GREEDY = 64  # tokens


def decoder(architecture, model_type, **keys):
    return {
        "architectures": [architecture], "model_type": model_type, "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, **keys}


CASES = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB, "n_positions": CONTEXT,
        "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_inner": None, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "bos_token_id": None, "eos_token_id": None},
    "bloom": {
        "architectures": ["BloomForCausalLM"], "model_type": "bloom", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "n_layer": LAYERS, "n_head": HEADS, "seq_length": CONTEXT, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None},
    "llama": decoder("LlamaForCausalLM", "llama"),
    "llama3": decoder("LlamaForCausalLM", "llama", attention_bias=True, mlp_bias=True, head_dim=8,
                      rope_theta=500000.0, rope_scaling={
                          "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 32}),
    "mistral": decoder("MistralForCausalLM", "mistral", sliding_window=7, head_dim=8),
    "qwen2": decoder("Qwen2ForCausalLM", "qwen2", tie_word_embeddings=True, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    "qwen3": decoder("Qwen3ForCausalLM", "qwen3", head_dim=8, rope_scaling={"rope_type": "linear", "factor": 2.0},
                     use_sliding_window=True, sliding_window=5, max_window_layers=1,
                     layer_types=["full_attention", "sliding_attention"]),
}


def gpt2_shapes(h, vocab):
    shapes = {"transformer.wte.weight": [vocab, h], "transformer.wpe.weight": [CONTEXT, h]}
    for layer in range(LAYERS):
        for name, shape in {"ln_1": [h], "attn.c_attn": [h, 3 * h], "attn.c_proj": [h, h], "ln_2": [h],
                            "mlp.c_fc": [h, 4 * h], "mlp.c_proj": [4 * h, h]}.items():
            shapes[f"transformer.h.{layer}.{name}.weight"] = shape
            shapes[f"transformer.h.{layer}.{name}.bias"] = shape[-1:]
    return {**shapes, "transformer.ln_f.weight": [h], "transformer.ln_f.bias": [h]}


def bloom_shapes(h, vocab):
    shapes, named = {"transformer.word_embeddings.weight": [vocab, h]}, {"word_embeddings_layernorm": [h]}
    for layer in range(LAYERS):
        for name, shape in {"input_layernorm": [h], "self_attention.query_key_value": [3 * h, h],
                            "self_attention.dense": [h, h], "post_attention_layernorm": [h],
                            "mlp.dense_h_to_4h": [4 * h, h], "mlp.dense_4h_to_h": [h, 4 * h]}.items():
            named[f"h.{layer}.{name}"] = shape
    for name, shape in {**named, "ln_f": [h]}.items():
        shapes[f"transformer.{name}.weight"] = shape
        shapes[f"transformer.{name}.bias"] = shape[:1]
    return {**shapes, "lm_head.weight": [vocab, h]}


def decoder_shapes(config):
    head = config.get("head_dim", HIDDEN // HEADS)
    query, kv = HEADS * head, config["num_key_value_heads"] * head
    attention_bias, mlp_bias = config.get("attention_bias", False), config.get("mlp_bias", False)
    qkv_bias = attention_bias or config["model_type"] == "qwen2"
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], HIDDEN]}
    for layer in range(LAYERS):
        linear = {"self_attn.q_proj": ([query, HIDDEN], qkv_bias), "self_attn.k_proj": ([kv, HIDDEN], qkv_bias),
                  "self_attn.v_proj": ([kv, HIDDEN], qkv_bias), "self_attn.o_proj": ([HIDDEN, query], attention_bias),
                  "mlp.gate_proj": ([FFN, HIDDEN], mlp_bias), "mlp.up_proj": ([FFN, HIDDEN], mlp_bias),
                  "mlp.down_proj": ([HIDDEN, FFN], mlp_bias)}
        for name, (shape, bias) in linear.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
            if bias:
                shapes[f"model.layers.{layer}.{name}.bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = [HIDDEN]
        if config["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = [head]
    shapes["model.norm.weight"] = [HIDDEN]
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], HIDDEN]
    return shapes


def shapes_of(config):
    if config["model_type"] == "gpt2":
        return gpt2_shapes(HIDDEN, config["vocab_size"])
    if config["model_type"] == "bloom":
        return bloom_shapes(HIDDEN, config["vocab_size"])
    return decoder_shapes(config)


def elements_of(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def values_of(name, shape):
    """Uniform numbers with 16 bits: around 1 for the weight of a norm, around 0 otherwise."""
    state = zlib.crc32(name.encode()) | 1
    norm = name.endswith("weight") and len(shape) == 1
    values = []
    for _ in range(elements_of(shape)):
        state = (state * 1664525 + 1013904223) % 2**32
        uniform = (state >> 16) / 65536 - 0.5
        values.append(1 + uniform / 2 if norm else uniform * (1 if len(shape) > 1 else 0.5))
    return values


def encode(values, dtype):
    """Rounded to nearest for F16; truncated for BF16."""
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{'f' if dtype == 'F32' else 'e'}", *values)


def write_safetensors(path, tensors):
    """tensors: name to (dtype, shape, bytes)."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + length:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def read_model(folder):
    """All tensors of a folder, from one file or several."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(read_safetensors(os.path.join(folder, name)))
    return tensors


def write_model(folder, config, dtype="F32", files=1):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    tensors = {name: (dtype, shape, encode(values_of(name, shape), dtype))
               for name, shape in shapes_of(config).items()}
    if files == 1:
        write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
        return
    names = list(tensors)
    placed = {name: f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i, name in enumerate(names)}
    for path in sorted(set(placed.values())):
        write_safetensors(os.path.join(folder, path), {name: tensors[name] for name in names if placed[name] == path})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {}, "weight_map": placed}, file)
