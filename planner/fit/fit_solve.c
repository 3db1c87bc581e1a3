// SPDX-License-Identifier: Apache-2.0
#include "planner/fit/fit.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if HAVE_CMINPACK

#include <cminpack.h>

/* NOISE: relative error that a row is expected to have. STEP: of finite differences, in the logarithm of a
 * value. */
static const double NOISE = 0.02, STEP = 1e-3;
enum { MAX_ITERATIONS = 200 };

/* ---- parameters as logarithms, relative to the prior ---- */

static double value_of(const struct fit_parameter *parameter, double x)
{
    const double value = parameter->prior * exp(x * parameter->spread);
    return fmin(fmax(value, parameter->low), parameter->high);
}

static double x_of(const struct fit_parameter *parameter, double value)
{
    return log(value / parameter->prior) / parameter->spread;
}

/* x of the parameter's value; that of the prior for a value of 0, which has no logarithm. */
static double x_at(const struct fit_parameter *parameter)
{
    return x_of(parameter, parameter->value > 0.0 ? parameter->value : parameter->prior);
}

/* The square root of the smoothed Huber function. */
static double huber_root(double r)
{
    return copysign(sqrt(2.0 * (sqrt(1.0 + r * r) - 1.0)), r);
}

static void set_values(const struct fit_solver *solver, const double *x, double *values)
{
    for (int i = 0; i < solver->parameter_count; i++)
        values[i] = value_of(&solver->parameters[i], x[i]);
}

double fit_objective(const struct fit_solver *solver, const double *error)
{
    double sum = 0.0;
    for (size_t r = 0; r < solver->rows; r++) {
        const double root = isfinite(error[r]) ? huber_root(error[r] / NOISE) : 0.0;
        sum += root * root;
    }
    for (int i = 0; i < solver->parameter_count; i++) {
        const double x = x_at(&solver->parameters[i]);
        sum += x * x;
    }
    return sum;
}

/* Residuals: rows, then priors. */
static void residuals(struct fit_solver *solver, const double *x, double *out)
{
    double values[FIT_MAX_PARAMETERS];
    set_values(solver, x, values);
    solver->evaluations++;
    solver->predict(solver->context, values, solver->error);
    for (size_t r = 0; r < solver->rows; r++)
        out[r] = isfinite(solver->error[r]) ? huber_root(solver->error[r] / NOISE) : 0.0;
    memcpy(out + solver->rows, x, (size_t)solver->parameter_count * sizeof *out);
}

/* Jacobian of the residuals, one column per parameter, by finite differences away from the parameter's
 * bound. */
static void differentiate(struct fit_solver *solver, const double *at, double *jacobian)
{
    const int n = solver->parameter_count;
    const size_t m = solver->rows + (size_t)n;
    double x[FIT_MAX_PARAMETERS];
    memcpy(x, at, (size_t)n * sizeof *x);
    residuals(solver, x, solver->base);
    for (int i = 0; i < n; i++) {
        const struct fit_parameter *parameter = &solver->parameters[i];
        const double step = STEP / parameter->spread;
        double *column = jacobian + (size_t)i * m;
        x[i] = at[i] + (value_of(parameter, at[i] + step) < parameter->high ? step : -step);
        residuals(solver, x, column);
        for (size_t r = 0; r < m; r++)
            column[r] = (column[r] - solver->base[r]) / (x[i] - at[i]);
        x[i] = at[i];
    }
}

/* Callback of lmder: residuals (flag 1) or their Jacobian. */
static int evaluate(void *context, int m, int n, const double *x, double *out, double *jacobian, int leading,
                    int flag)
{
    CHECK(leading == m);
    (void)n;
    if (flag == 1)
        residuals(context, x, out);
    else
        differentiate(context, x, jacobian);
    return 0;
}

/* ---- how well each parameter is determined ---- */

/* Inverts the symmetric positive definite n x n matrix in place, by Gauss-Jordan elimination. */
static void invert(double *a, int n)
{
    for (int k = 0; k < n; k++) {
        const double pivot = 1.0 / a[k * n + k];
        a[k * n + k] = 1.0;
        for (int j = 0; j < n; j++)
            a[k * n + j] *= pivot;
        for (int i = 0; i < n; i++) {
            const double factor = a[i * n + k];
            if (i == k)
                continue;
            a[i * n + k] = 0.0;
            for (int j = 0; j < n; j++)
                a[i * n + j] -= factor * a[k * n + j];
        }
    }
}

/* The covariance of x is (JᵀJ)⁻¹; that of the priors alone is 1. */
static void set_uncertainty(struct fit_solver *solver, const double *x, double *jacobian)
{
    const int n = solver->parameter_count;
    const size_t m = solver->rows + (size_t)n;
    double normal[FIT_MAX_PARAMETERS * FIT_MAX_PARAMETERS] = {0};
    differentiate(solver, x, jacobian);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            for (size_t r = 0; r < m; r++)
                normal[i * n + j] += jacobian[(size_t)i * m + r] * jacobian[(size_t)j * m + r];
    invert(normal, n);
    for (int i = 0; i < n; i++)
        solver->parameters[i].uncertainty = sqrt(normal[i * n + i]);
}

/* ---- the fit ---- */

static void minimize(struct fit_solver *solver, double *x, double *jacobian, double *residual)
{
    enum { BY_DIAGONAL = 2 };
    const int n = solver->parameter_count, m = (int)solver->rows + n;
    double diagonal[FIT_MAX_PARAMETERS], gradient[FIT_MAX_PARAMETERS], work[3][FIT_MAX_PARAMETERS];
    int pivots[FIT_MAX_PARAMETERS], calls = 0, jacobians = 0;
    double *last = memory_zeroed((size_t)m + 1, sizeof *last, "a fit");
    for (int i = 0; i < n; i++)
        diagonal[i] = 1.0;
    (void)lmder(evaluate, solver, m, n, x, residual, jacobian, m, 1e-7, 1e-6, 0.0, MAX_ITERATIONS, diagonal,
                BY_DIAGONAL, 1.0, 0, &calls, &jacobians, pivots, gradient, work[0], work[1], work[2], last);
    free(last);
}

static void take_result(struct fit_solver *solver, double *x)
{
    double values[FIT_MAX_PARAMETERS];
    set_values(solver, x, values);
    for (int i = 0; i < solver->parameter_count; i++) {
        struct fit_parameter *parameter = &solver->parameters[i];
        parameter->value = values[i];
        parameter->at_bound = values[i] >= parameter->high || values[i] <= parameter->low;
        x[i] = x_at(parameter);
    }
}

enum status fit_solve(struct fit_solver *solver)
{
    const size_t n = (size_t)solver->parameter_count, m = solver->rows + n;
    double x[FIT_MAX_PARAMETERS] = {0};
    AUTO_FREE double *jacobian = memory_zeroed(m * n + 1, sizeof *jacobian, "a fit");
    AUTO_FREE double *residual = memory_zeroed(m + 1, sizeof *residual, "a fit");
    CHECK(n > 0 && n <= FIT_MAX_PARAMETERS);
    for (size_t i = 0; i < n && solver->begins_at_values; i++)
        x[i] = x_at(&solver->parameters[i]);
    free(solver->error);
    solver->base = memory_zeroed(m + 1, sizeof *solver->base, "a fit");
    solver->error = memory_zeroed(solver->rows + 1, sizeof *solver->error, "a fit");
    minimize(solver, x, jacobian, residual);
    take_result(solver, x);
    set_uncertainty(solver, x, jacobian);
    residuals(solver, x, residual);
    free(solver->base);
    solver->base = NULL;
    return OK;
}

bool fit_is_available(void)
{
    return true;
}

#else

double fit_objective(const struct fit_solver *solver, const double *error)
{
    (void)solver;
    (void)error;
    return 0.0;
}

enum status fit_solve(struct fit_solver *solver)
{
    (void)solver;
    return fail(NOT_SUPPORTED, "this program was built without cminpack, which fits profiles; install "
                               "libcminpack-dev and build again");
}

bool fit_is_available(void)
{
    return false;
}

#endif
