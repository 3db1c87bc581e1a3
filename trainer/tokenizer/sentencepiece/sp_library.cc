// SPDX-License-Identifier: Apache-2.0
#include "trainer/tokenizer/sentencepiece/sp_library.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <sentencepiece_processor.h>
#include <string>
#include <vector>

struct sp_model {
    sentencepiece::SentencePieceProcessor processor;
};

/* Calls the library: no exception may reach C. */
template <typename Call> static sp_result guarded(char *why, Call call)
{
    try {
        const sentencepiece::util::Status status = call();
        if (status.ok())
            return SP_OK;
        std::snprintf(why, SP_WHY, "%s", status.ToString().c_str());
    } catch (const std::bad_alloc &) {
        return SP_NO_MEMORY;
    } catch (const std::exception &error) {
        std::snprintf(why, SP_WHY, "%s", error.what());
    } catch (...) {
        std::snprintf(why, SP_WHY, "unknown error");
    }
    return SP_BAD;
}

sp_result sp_load(const char *path, sp_model **out, char why[SP_WHY])
{
    std::unique_ptr<sp_model> model(new (std::nothrow) sp_model);
    if (!model)
        return SP_NO_MEMORY;
    const sp_result result = guarded(why, [&] { return model->processor.Load(path); });
    *out = result == SP_OK ? model.release() : nullptr;
    return result;
}

void sp_free(sp_model *model)
{
    delete model;
}

int sp_size(const sp_model *model)
{
    return model->processor.GetPieceSize();
}

int sp_bos(const sp_model *model)
{
    return model->processor.bos_id();
}

int sp_eos(const sp_model *model)
{
    return model->processor.eos_id();
}

const char *sp_piece(const sp_model *model, int id, size_t *length, sp_kind *kind)
{
    const std::string &piece = model->processor.IdToPiece(id);
    *kind = model->processor.IsControl(id)   ? SP_CONTROL
            : model->processor.IsUnknown(id) ? SP_UNKNOWN
            : model->processor.IsByte(id)    ? SP_BYTE
                                             : SP_NORMAL;
    *length = piece.size();
    return piece.c_str();
}

sp_result sp_encode(const sp_model *model, const char *bytes, size_t length,
                    void (*append)(tokens *out, const int *ids, size_t count), tokens *out, char why[SP_WHY])
{
    return guarded(why, [&] {
        std::vector<int> ids;
        const sentencepiece::util::Status status =
            model->processor.Encode(absl::string_view(bytes, length), &ids);
        if (status.ok())
            append(out, ids.data(), ids.size());
        return status;
    });
}
